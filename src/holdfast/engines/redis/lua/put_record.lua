-- put_record: see putting.lua for the arguments and the answer.
return put()
