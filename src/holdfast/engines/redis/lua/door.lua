-- Before plain reads, and to ask for the time: is this the store that the caller means? Answers {seq, now}.
return {seq, time_now()}
