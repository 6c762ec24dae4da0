-- The first schema. `{schema}` is the one thing that is put into these texts (`store.Texts`), checked before.
--
-- Hot: `job` holds the jobs that have not ended, and nothing else, so that vacuum and claims never meet the history.
-- Cold: `done` the jobs that have ended; `body` long arguments, written once; `entry` the history; `step` the step
-- records. What most jobs go through, a submit, one claim and a completion, is read off the job's own row (`told`). The
-- cold tables are cut into days, so that retention is a DROP (`drop_day`). No foreign keys anywhere.
-- `n` is the order of insertion, and its upper bits are the day: that is what the partitions go by.

create table {schema}.store (
  one boolean primary key default true check (one),
  version integer not null,                -- the last migration this schema has had
  oldest integer not null                  -- a program must know this migration to use it; raised by a migration's SQL
);
insert into {schema}.store (version, oldest) values (1, 1);

create sequence {schema}.job_n;
create sequence {schema}.step_place;

create function {schema}.now_ms() returns bigint language sql volatile as
  $$ select pg_catalog.floor(extract(epoch from pg_catalog.clock_timestamp()) operator(pg_catalog.*) 1000)::bigint $$;

-- What all rows have in a column that was given once for all of them; nothing, if it was given whole.
create function {schema}.once(given anyarray) returns anyelement language sql immutable as
  $$ select case when pg_catalog.cardinality(given) operator(pg_catalog.=) 1 then given[1] end $$;

-- The one place where an id is unique, whether its job has ended or not.
create table {schema}.name (
  id text collate "C" primary key,
  n bigint not null
);

create table {schema}.job (
  n bigint primary key,
  id text collate "C" not null,
  type text not null,
  queue text not null,
  args text,                               -- none: they are long, and lie in `body`
  digest text not null,
  priority bigint not null,
  key text,
  key_until bigint,
  parent text,
  family text,                             -- the group of the parent's children that it belongs to
  created_at bigint not null,
  expires_at bigint,
  options text not null,
  state text not null check (state in ('scheduled', 'available', 'pending', 'active', 'retryable', 'review')),
  version bigint not null,
  run_at bigint,
  epoch bigint not null,
  attempt bigint not null,
  recoveries bigint not null,
  worker text,
  claimed_at bigint,
  waits text,
  result text,
  error text,
  finished_at bigint check (finished_at is null),
  prune_at bigint,
  inbox text,
  arrived boolean not null,
  first_state text,                        -- with these two the first entry of the history needs no row of its own
  first_epoch bigint not null,
  untold bigint,                           -- the version of its claim, while that entry has no row of its own
  check ((state = 'active') = (worker is not null))
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_scale_factor = 0.05);

-- Only what the planner chooses by is sampled: all columns, after every bulk of inserts, cost half as much as these.
do $$
declare
  col text;
begin
  for col in select attname from pg_attribute where attrelid = '{schema}.job'::regclass and attnum > 0 loop
    execute format('alter table %s alter %I set statistics %s', '{schema}.job', col,
      case when col in ('n', 'queue', 'priority', 'parent', 'expires_at', 'state', 'run_at', 'worker')
        then 10 else 0 end);
  end loop;
end $$;
alter table {schema}.name alter id set statistics 10, alter n set statistics 10;

create index job_ready on {schema}.job (queue, priority desc, run_at, n) where state = 'available';
create index job_due on {schema}.job (queue, run_at, n)
  where state in ('scheduled', 'retryable', 'pending') and run_at is not null;
create index job_backing_off on {schema}.job (queue, run_at) where state = 'available' and recoveries > 1;
create index job_held on {schema}.job (worker) where state = 'active';
create index job_state on {schema}.job (state, id) where state <> 'active';  -- those are few, and in `job_held`
create index job_parent on {schema}.job (parent, id) where parent is not null;
create index job_expiring on {schema}.job (expires_at) where expires_at is not null;

create table {schema}.done (
  n bigint not null,
  id text collate "C" not null,
  type text not null,
  queue text not null,
  args text,
  digest text not null,
  priority bigint not null,
  key text,
  key_until bigint,
  parent text,
  family text,
  created_at bigint not null,
  expires_at bigint,
  options text not null,
  state text not null check (state in ('completed', 'discarded', 'cancelled')),
  version bigint not null,
  run_at bigint,
  epoch bigint not null,
  attempt bigint not null,
  recoveries bigint not null,
  worker text check (worker is null),
  claimed_at bigint,
  waits text,
  result text,
  error text,
  finished_at bigint,
  prune_at bigint,
  inbox text,
  arrived boolean not null,
  first_state text,
  first_epoch bigint not null,
  told_claim bigint,                       -- the version of its claim, if that and its end have no rows of their own
  told_at bigint,
  told_by text,
  primary key (n)
) partition by range (n);

create index done_state on {schema}.done (state, id);
create index done_parent on {schema}.done (parent, id) where parent is not null;
create index done_old on {schema}.done (prune_at, n) where prune_at is not null;

create table {schema}.body (              -- arguments that are too long to be carried along with every change
  n bigint not null,
  args text not null,
  primary key (n)
) partition by range (n);

create table {schema}.entry (
  n bigint not null,
  version bigint not null,
  at bigint not null,
  event text not null,
  before text,
  after text not null,
  actor text not null,
  epoch bigint not null,
  note text,
  primary key (n, version)
) partition by range (n);

create table {schema}.step (
  n bigint not null,
  path text collate "C" not null,
  place bigint not null,                   -- the order in which steps were first written
  name text not null,
  state text not null check (state in ('started', 'done', 'failed')),
  epoch bigint not null,
  started_at bigint not null,
  finished_at bigint,
  error text,
  result text,
  primary key (n, path)
) partition by range (n);

-- What falls on a day that nobody has prepared.
create table {schema}.done_rest partition of {schema}.done default;
create table {schema}.body_rest partition of {schema}.body default;
create table {schema}.entry_rest partition of {schema}.entry default;
create table {schema}.step_rest partition of {schema}.step default;

create table {schema}.key (
  type text not null,
  key text not null,
  job text not null,
  digest text not null,
  until bigint,
  created_at bigint not null,              -- when the job that has it was made
  primary key (type, key)
);
create index key_over on {schema}.key (until) where until is not null;

create table {schema}.family (             -- how many children a group has, and how many of them have settled
  parent text not null,
  name text not null,
  total bigint not null,
  arrived bigint not null,
  primary key (parent, name)
) with (fillfactor = 50);

-- How many jobs a queue has in a state: differences, which `prune` sums up. A row that everybody counts on would make
-- all commits wait for one another's disk.
create table {schema}.tally (
  queue text not null,
  state text not null,
  jobs bigint not null
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

create table {schema}.record (             -- a removed record keeps its row, so that its version never comes back
  name text collate "C" primary key,
  value text,
  version bigint not null,
  at bigint not null
) with (fillfactor = 50);

create table {schema}.worker (
  name text collate "C" primary key,
  presence text not null,
  beat_at bigint not null,
  beat_ms bigint not null,
  lease_ms bigint not null,
  lock bigint                              -- the advisory lock that it holds while it lives; none by way of a pooler
) with (fillfactor = 50);

-- Whole jobs, in the order in which `rows.py` reads them.
create view {schema}.live as
  select job.n, job.id, job.type, job.queue,
    coalesce(job.args, (select body.args from {schema}.body where body.n = job.n)) as args, job.digest, job.priority,
    job.key, job.key_until, job.parent, job.family, job.created_at, job.expires_at, job.options, job.state,
    job.version, job.run_at, job.epoch, job.attempt, job.recoveries, job.worker, job.claimed_at, job.waits,
    job.result, job.error, job.finished_at, job.prune_at, job.inbox, job.arrived
  from {schema}.job;

create view {schema}.ended as
  select done.n, done.id, done.type, done.queue,
    coalesce(done.args, (select body.args from {schema}.body where body.n = done.n)) as args, done.digest,
    done.priority, done.key, done.key_until, done.parent, done.family, done.created_at, done.expires_at,
    done.options, done.state, done.version, done.run_at, done.epoch, done.attempt, done.recoveries, done.worker,
    done.claimed_at, done.waits, done.result, done.error, done.finished_at, done.prune_at, done.inbox, done.arrived
  from {schema}.done;

-- All entries of the history: those that have rows, and those that are read off the job's own.
create view {schema}.told as
  select n, version, at, event, before, after, actor, epoch, note from {schema}.entry
  union all
  select n, 1, created_at, 'submit', null, first_state, coalesce(parent, ''), first_epoch, null
  from {schema}.job where first_state is not null
  union all
  select n, 1, created_at, 'submit', null, first_state, coalesce(parent, ''), first_epoch, null
  from {schema}.done where first_state is not null
  union all
  select n, untold, claimed_at, 'claim', 'available', 'active', worker, epoch, null
  from {schema}.job where untold is not null
  union all
  select n, told_claim, told_at, 'claim', 'available', 'active', told_by, epoch, null
  from {schema}.done where told_claim is not null
  union all
  select n, version, finished_at, 'complete', 'active', state, told_by, epoch, null
  from {schema}.done where told_claim is not null;

-- Claim: what is due in these queues is promoted, then jobs are taken, available → active, queue after queue, until there
-- are `most`. In the middle of a long drain of the first queue it may begin where the last claim began (`from_level` and
-- the next two, see `floor.py`), so that what was claimed since, and can't be vacuumed yet, is not walked over again and
-- again. Never by a walk over the whole table: the planner would look so for a higher priority, which it believes many to
-- have.
create function {schema}.claim(
  claimer text, queues text[], most bigint, due_most bigint, from_level bigint, from_run_at bigint, from_n bigint)
returns setof {schema}.live language plpgsql volatile
set search_path = pg_catalog set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
  now_at bigint := {schema}.now_ms();
  wanted text;
  left_over bigint := most;
  picked tid[];  -- we hold these rows, so they stay where they are
  taken_now bigint;
  from_floor boolean;
begin
  foreach wanted in array queues loop
    if exists (select 1 from {schema}.record where name = 'pause/' || wanted and value is not null) then
      continue;
    end if;
    from_floor := from_level is not null and wanted = queues[1] and not exists (
      select 1 from {schema}.job where state = 'available' and queue = wanted and priority > from_level
    );
    loop
      if from_floor then
        picked := array(
          select job.ctid from {schema}.job
          where state = 'available' and queue = wanted and priority = from_level
            and (run_at, n) >= (from_run_at, from_n) and run_at <= now_at
            and (expires_at is null or expires_at > now_at)
          order by run_at, n limit left_over for update skip locked
        );
      else
        -- promote: scheduled, retryable → available; activate: pending → available
        if exists (
          select 1 from {schema}.job
          where state in ('scheduled', 'retryable', 'pending') and queue = wanted and run_at <= now_at
        ) then
          with due as (
            select job.n, job.state as before from {schema}.job
            where state in ('scheduled', 'retryable', 'pending') and queue = wanted and run_at <= now_at
              and (expires_at is null or expires_at > now_at)
            order by run_at, n limit due_most for update skip locked
          ), moved as (
            update {schema}.job set state = 'available', version = job.version + 1, waits = null,
              run_at = case when due.before = 'pending' then now_at else job.run_at end
            from due where job.n = due.n
            returning job.n, job.version, job.epoch, due.before
          ), told as (
            insert into {schema}.entry (n, version, at, event, before, after, actor, epoch, note)
            select n, version, now_at, case when before = 'pending' then 'activate' else 'promote' end, before,
              'available', 'time', epoch, null
            from moved
          )
          insert into {schema}.tally (queue, state, jobs)
          select wanted, before, -count(*) from moved group by before
          union all
          select wanted, 'available', count(*) from moved having count(*) > 0;
        end if;
        picked := array(
          select job.ctid from {schema}.job
          where state = 'available' and queue = wanted and run_at <= now_at
            and (expires_at is null or expires_at > now_at)
          order by priority desc, run_at, n limit left_over for update skip locked
        );
      end if;
      return query
        with taken as (
          update {schema}.job set state = 'active', version = job.version + 1, epoch = job.epoch + 1,
            worker = claimer, claimed_at = now_at, untold = job.version + 1
          where job.ctid = any(picked)
          returning job.*
        ), counted as (
          insert into {schema}.tally (queue, state, jobs)
          select wanted, 'available', -count(*) from taken having count(*) > 0
          union all
          select wanted, 'active', count(*) from taken having count(*) > 0
        )
        select job.n, job.id, job.type, job.queue,
          coalesce(job.args, (select body.args from {schema}.body where body.n = job.n)), job.digest,
          job.priority, job.key, job.key_until, job.parent, job.family, job.created_at, job.expires_at, job.options,
          job.state, job.version, job.run_at, job.epoch, job.attempt, job.recoveries, job.worker, job.claimed_at,
          job.waits, job.result, job.error, job.finished_at, job.prune_at, job.inbox, job.arrived
        from taken as job order by job.priority desc, job.run_at, job.n;
      get diagnostics taken_now = row_count;
      left_over := left_over - taken_now;
      exit when left_over <= 0 or not from_floor;
      from_floor := false;
    end loop;
    exit when left_over <= 0;
  end loop;
end $$;

-- Jobs whose time is over. By their index, which the planner would leave out: it believes a third of all jobs to expire.
create function {schema}.expired(until bigint) returns setof bigint language sql stable
set search_path = pg_catalog set enable_seqscan = off set enable_bitmapscan = off as $$
  select n from {schema}.job where expires_at <= until
$$;

-- Prune: terminal jobs whose time has come and who have no live kin. What of them is on a day of its own goes with that
-- day. Forgets keys whose time is over, and sums up the counters when there are many.
create function {schema}.prune(most bigint, fold_at bigint) returns bigint
language plpgsql volatile set search_path = pg_catalog as $$
declare
  now_at bigint := {schema}.now_ms();
  pruned bigint;
begin
  with old as materialized (
    select done.n from {schema}.done
    where done.prune_at <= now_at
      and not exists (select 1 from {schema}.job as child where child.parent = done.id offset 0)
      and not exists (select 1 from {schema}.name join {schema}.job using (n) where name.id = done.parent offset 0)
    order by done.prune_at, done.n limit most
    for update skip locked
  ), gone as (
    delete from {schema}.done using old where done.n = old.n
    returning done.n, done.id, done.queue, done.state, done.type, done.key
  ), names as (
    delete from {schema}.name using gone where name.id = gone.id
  ), keys as (
    delete from {schema}.key using gone
    where key.type = gone.type and key.key = gone.key and key.job = gone.id
      and (key.until is null or key.until <= now_at)
  ), families as (
    delete from {schema}.family using gone where family.parent = gone.id
  ), bodies as (
    delete from {schema}.body_rest using gone where body_rest.n = gone.n
  ), entries as (
    delete from {schema}.entry_rest using gone where entry_rest.n = gone.n
  ), steps as (
    delete from {schema}.step_rest using gone where step_rest.n = gone.n
  ), counted as (
    insert into {schema}.tally (queue, state, jobs)
    select queue, state, -count(*) from gone group by queue, state
  )
  select count(*) into pruned from gone;
  delete from {schema}.key where until <= now_at;
  if (select count(*) from (select 1 from {schema}.tally limit fold_at) as few) >= fold_at then
    -- Rows that another one sums up just now are left to it.
    with few as (
      select ctid from {schema}.tally limit 100000 for update skip locked
    ), folded as (
      delete from {schema}.tally where ctid = any(array(select ctid from few)) returning queue, state, jobs
    )
    insert into {schema}.tally (queue, state, jobs)
    select queue, state, sum(jobs) from folded group by queue, state having sum(jobs) <> 0;
  end if;
  return pruned;
end $$;

-- Days: partitions for today and the days to come, made before anything falls on them; and days of which nothing is left.
-- Each call makes or drops one table, so that it waits for one lock at a time and can't deadlock with anybody; not for
-- long, because whoever comes meanwhile waits behind it. Answers whether there was something to do. A day of which
-- something lies in the rest already stays there.
create function {schema}.add_day(ahead bigint) returns boolean
language plpgsql volatile set search_path = pg_catalog set lock_timeout = '200ms' as $$
declare
  today bigint := {schema}.now_ms() / 86400000;
  cold text;
  part text;
  day bigint;
  late boolean;
begin
  for day in select generate_series(today, today + ahead) loop  -- a loop over numbers would count in small ones
    foreach cold in array array['done', 'body', 'entry', 'step'] loop
      part := cold || '_' || day;
      if to_regclass(format('%s.%I', '{schema}', part)) is null then
        execute format('select exists (select 1 from %s.%I where n >= $1 and n < $2)', '{schema}', cold || '_rest')
          into late using day << 40, (day + 1) << 40;
        continue when late;
        execute format('create table %s.%I partition of %s.%I for values from (%s) to (%s)',
          '{schema}', part, '{schema}', cold, day << 40, (day + 1) << 40);
        return true;
      end if;
    end loop;
  end loop;
  return false;
end $$;

create function {schema}.drop_day() returns boolean
language plpgsql volatile set search_path = pg_catalog set lock_timeout = '200ms' as $$
declare
  today bigint := {schema}.now_ms() / 86400000;
  day bigint;
  cold text;
  kept boolean;
begin
  for day in
    select substring(relname from '^done_([0-9]+)$')::bigint from pg_class
    where relnamespace = to_regnamespace('{schema}') and relname ~ '^done_[0-9]+$'
  loop
    -- A transaction that began before midnight may still write into yesterday.
    continue when day >= today - 1;
    continue when exists (select 1 from {schema}.job where n >= day << 40 and n < (day + 1) << 40);
    execute format('select exists (select 1 from %s.%I)', '{schema}', 'done_' || day) into kept;
    continue when kept;
    foreach cold in array array['step', 'entry', 'body', 'done'] loop  -- `done` last: by it a day is found
      if to_regclass(format('%s.%I', '{schema}', cold || '_' || day)) is not null then
        execute format('drop table %s.%I', '{schema}', cold || '_' || day);
        return true;
      end if;
    end loop;
  end loop;
  return false;
end $$;

do $$ begin while {schema}.add_day(1) loop end loop; end $$;

-- For a person with psql.
create view {schema}.jobs as
  select id, type, queue, state, attempt, to_timestamp(run_at / 1000.0) as run_at, worker, args, error, result
  from {schema}.live
  union all
  select id, type, queue, state, attempt, to_timestamp(run_at / 1000.0), worker, args, error, result from {schema}.ended;

create view {schema}.history as
  select name.id, told.version, to_timestamp(told.at / 1000.0) as at, event, before, after, actor, note
  from {schema}.told join {schema}.name using (n);
