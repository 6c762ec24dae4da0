-- Shared limits. A job with limits is available outside the order of its queue: it waits behind a key, and a claim reads it
-- only when that key may have room. A pending job whose step waits for a permit is parked behind a key.
--
-- Programs of the version before leave both columns as they are. They claim jobs without regard to their limits, and a bit
-- more slowly than before, because they can't use the new indexes.
alter table job add column limit_key text;
alter table job add column parked_key text;

drop index job_ready;
create index job_ready on job (queue, type, priority desc, run_at) where state = 'available' and limit_key is null;
create index holdfast_limited on job (limit_key, queue, type, priority desc, run_at)
  where state = 'available' and limit_key is not null;
create index holdfast_parked on job (parked_key, queue) where state = 'pending' and parked_key is not null;

-- A whole job, as before, with the key behind its other columns, where nobody looks.
drop view whole;
create view whole as
  select job.n, id, type, queue, args, digest, priority, key, key_until, parent, family, created_at, expires_at,
    options, state, version, run_at, epoch, attempt, recoveries, worker, claimed_at, waits, result, error,
    finished_at, prune_at, inbox, arrived, limit_key
  from job join body on body.n = job.n;

create table holdfast_permit (            -- valid while the job's lease has this epoch
  key text not null,
  job text not null,
  path text not null,                     -- of a step; empty: the job's own; '~reserved': kept for a job that was woken
  epoch integer not null,
  try_number integer not null,
  until integer,                          -- the end of a reservation
  primary key (key, job, path)
) strict, without rowid;

create index holdfast_permit_job on holdfast_permit (job);

create table holdfast_waiting (           -- in which queues jobs wait behind a key: there may be more rows, never fewer
  key text not null,
  queue text not null,
  at integer,                             -- from when on a claim must look at the key; null: when a permit ends
  stands integer not null,                -- 1: a claim has looked, and found room, but for jobs that it didn't take
  primary key (key, queue)
) strict, without rowid;

create index holdfast_waiting_due on holdfast_waiting (queue, at) where at is not null;

pragma user_version = 5;
