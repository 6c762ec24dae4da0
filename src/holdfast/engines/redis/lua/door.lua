-- Before plain reads, and to ask for the time: is this the store that the caller expects? Returns {seq, now}.
return {seq, time_now()}
