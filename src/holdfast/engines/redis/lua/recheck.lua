-- recheck: {limit, the last key of the page before, how many}. Continues where put_record ended: lets claims look at the keys of a
-- limit that has changed. Answers {seq, where to continue or false}.
if moved then return moved end
count_act()
return {seq, shared_limits().recheck_page(ARGV[FIRST_ARG], ARGV[FIRST_ARG + 1], tonumber(ARGV[FIRST_ARG + 2]))}
