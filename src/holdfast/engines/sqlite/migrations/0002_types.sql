-- Claims go by type: a worker takes the types that it knows, and passes over no others on the way. Lists by state leave out
-- active jobs, which are few and found by `job_held`: that pays for the longer index.
drop index job_ready;
create index job_ready on job (queue, type, priority desc, run_at) where state = 'available';

drop index job_state;
create index job_state on job (state, id) where state <> 'active';

pragma user_version = 2;
