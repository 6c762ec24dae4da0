-- Before plain reads: is this the store that the caller means?
return {seq}
