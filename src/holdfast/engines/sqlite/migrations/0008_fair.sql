-- Fairness. An available job with a fair key is outside the order of its queue: the keys take turns, and a claim goes from one
-- key to the next. The record `fair/QUEUE/TYPES/PRIORITY` has the key that started last.
--
-- Programs of the version before leave the column as it is. They claim jobs without regard to their fair keys, and a bit
-- more slowly than before, because they can't use the new indexes.
alter table job add column fair text;

drop index job_ready;
create index job_ready on job (queue, type, priority desc, run_at)
  where state = 'available' and limit_key is null and fair is null;
create index holdfast_fair on job (queue, type, limit_key, priority desc, fair, run_at)
  where state = 'available' and fair is not null;

-- A whole job, as before, with the fair key behind its other columns.
drop view whole;
create view whole as
  select job.n, id, type, queue, args, digest, priority, key, key_until, parent, family, created_at, expires_at,
    options, state, version, run_at, epoch, attempt, recoveries, worker, claimed_at, waits, result, error,
    finished_at, prune_at, inbox, arrived, limit_key, fair
  from job join body on body.n = job.n;

pragma user_version = 8;
