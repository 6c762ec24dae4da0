-- The first schema. `job` is small and changes; `body` is what was asked, written once, so that a change of state
-- never rewrites a large payload. `n` is the order of insertion, and the short name by which the tables refer to a job.

create table job (
  n integer primary key,
  id text not null unique,
  type text not null,
  queue text not null,
  priority integer not null,
  state text not null check (
    state = 'available' or state = 'active' or state = 'completed' or state = 'scheduled' or state = 'pending'
    or state = 'retryable' or state = 'review' or state = 'discarded' or state = 'cancelled'),
  version integer not null,
  run_at integer,
  epoch integer not null,
  attempt integer not null,
  recoveries integer not null,
  worker text,
  claimed_at integer,
  expires_at integer,
  finished_at integer,
  prune_at integer,
  parent text,
  family text,                            -- the group of the parent's children that it belongs to
  arrived integer not null,
  waits text,
  inbox text,
  error text,
  result text,
  check ((state = 'active') = (worker is not null)),
  check ((state = 'completed' or state = 'discarded' or state = 'cancelled') = (finished_at is not null))
) strict;

-- Conditions that every write evaluates are plain comparisons: SQLite builds a little table for each `in (…)` of more
-- than two, every time, which doubled the cost of an update.
create index job_ready on job (queue, priority desc, run_at) where state = 'available';
create index job_due on job (queue, run_at)
  where run_at is not null and finished_at is null and worker is null and state <> 'available' and state <> 'review';
create index job_backing_off on job (queue, run_at) where state = 'available' and recoveries > 1;
create index job_held on job (worker) where state = 'active';
create index job_state on job (state, id);
create index job_parent on job (parent, id) where parent is not null;
create index job_expiring on job (expires_at) where expires_at is not null and finished_at is null;
create index job_old on job (prune_at) where prune_at is not null;

create table body (
  n integer primary key,
  args text not null,
  digest text not null,
  key text,
  key_until integer,
  created_at integer not null,
  options text not null
) strict;

create table entry (                      -- the history: one row for each version of a job
  job integer not null,
  version integer not null,
  at integer not null,
  event text not null,
  before text,
  after text not null,
  actor text not null,
  epoch integer not null,
  note text,
  primary key (job, version)
) strict, without rowid;

create table step (
  n integer primary key,                  -- the order in which steps were first written
  job integer not null,
  path text not null,
  name text not null,
  state text not null check (state = 'done' or state = 'started' or state = 'failed'),
  epoch integer not null,
  started_at integer not null,
  finished_at integer,
  error text,
  result text,
  unique (job, path)
) strict;

create table key (
  type text not null,
  key text not null,
  job text not null,
  digest text not null,
  until integer,
  primary key (type, key)
) strict, without rowid;

create index key_over on key (until) where until is not null;

create table family (                     -- how many children a group has, and how many of them have settled
  parent text not null,
  name text not null,
  total integer not null,
  arrived integer not null,
  primary key (parent, name)
) strict, without rowid;

create table tally (                      -- how many jobs a queue has in a state: kept, never counted
  queue text not null,
  state text not null,
  jobs integer not null,
  primary key (queue, state)
) strict, without rowid;

create table record (                     -- a removed record keeps its row, so that its version never comes back
  name text primary key,
  value text,
  version integer not null,
  at integer not null
) strict, without rowid;

-- A whole job, in the order in which `rows.py` reads it.
create view whole as
  select job.n, id, type, queue, args, digest, priority, key, key_until, parent, family, created_at, expires_at,
    options, state, version, run_at, epoch, attempt, recoveries, worker, claimed_at, waits, result, error,
    finished_at, prune_at, inbox, arrived
  from job join body on body.n = job.n;

-- For a person with a SQLite shell.
create view jobs as
  select id, type, queue, state, attempt, datetime(run_at / 1000, 'unixepoch') as run_at, worker, args, error, result
  from job join body using (n);

create view history as
  select job.id, entry.version, datetime(entry.at / 1000, 'unixepoch') as at, event, before, after, actor, note
  from entry join job on job.n = entry.job;

pragma application_id = 1215261796;       -- "Hold" in ASCII, the mark by which we know our own files
pragma user_version = 1;
