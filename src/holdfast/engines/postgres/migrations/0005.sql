-- Shared limits: jobs that need permits wait behind a key, outside the order of their queue.
--
-- A permit is valid only while its lease is current, so none has to be swept, and no counter can drift. A recheck tells
-- the claims of a queue to look at a key: wherever a key has room and jobs wait behind it, there is a recheck that nobody
-- has taken. Rechecks are only added and removed, and whoever takes one passes over those that others hold.
--
-- Who locks what: the row `bucket/KEY` of `record` is locked by claim and admit only, all of them once, in the order of
-- the keys, after the jobs. Whoever holds one waits for nobody: from then on everything is taken with `skip locked`.
-- Permits are counted after that, in a statement of its own, so that it sees those of the one who held it before.
--
-- The lock is taken first, as in the second migration: from then on all who use `job` wait until the index is there.
-- Programs of the version before go on meanwhile: they claim by the new function, and jobs that they end free no waiting
-- job before the next look at its key.
lock table {schema}.job in access exclusive mode;
alter table {schema}.job add column limit_key text collate "C";  -- behind which it waits; null: it needs no permit
alter table {schema}.job alter limit_key set statistics 10;
drop index {schema}.job_kind;
create index job_kind on {schema}.job (queue, type, priority desc, run_at, n)
  where state = 'available' and limit_key is null;
create index job_waiting on {schema}.job (limit_key, queue, type, priority desc, run_at, n)
  where state = 'available' and limit_key is not null;
-- A pending job has a key only if a step of it waits for a permit.
create index job_parked on {schema}.job (limit_key, queue, n) where state = 'pending' and limit_key is not null;

create table {schema}.permit (
  key text collate "C" not null,
  n bigint not null,                       -- the job's number
  path text collate "C" not null,          -- of the step; empty: the job's own; `~reserved`: kept for a job without a lease
  epoch bigint not null,
  try_number bigint not null,
  until bigint,                            -- until when it is kept; null: while its lease is current
  primary key (key, n, path)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
create index permit_job on {schema}.permit (n);

create table {schema}.recheck (
  queue text,                              -- null: every queue where jobs wait behind the key
  key text collate "C" not null,
  at bigint not null                       -- from when on; below zero: looked at then, and there was room for other types
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
create index recheck_due on {schema}.recheck (queue, at);

-- A key during an act: its limit's settings, its bucket as it is now, and how many permits it has (null: not counted yet).
create type {schema}.kept_key as (
  key text, at_once bigint, burst bigint, refill bigint, period_ms bigint, tokens bigint, at bigint,
  closed_until bigint, starts bigint, held bigint, is_changed boolean
);

-- Reading texts. What can't be read counts as not there.

-- Numbers of a JSON object by their names; null for those that it lacks, and nothing at all if it is not as it should be.
create function {schema}.numbers(given text, names text[], nullable text[]) returns bigint[]
language plpgsql immutable strict as $$
declare
  document jsonb;
  value jsonb;
  name text;
  answer bigint[] := '{}';
begin
  document := given::jsonb;
  if jsonb_typeof(document) <> 'object' then
    return null;
  end if;
  foreach name in array names loop
    value := document -> name;
    if value is null or (value = 'null' and name = any(nullable)) then
      answer := answer || null::bigint;
    elsif jsonb_typeof(value) <> 'number' or value::numeric <> trunc(value::numeric) then
      return null;
    else
      answer := answer || value::numeric::bigint;
    end if;
  end loop;
  return answer;
exception when data_exception or program_limit_exceeded then
  return null;
end $$;

-- What a job needs of limits: the keys, and the units of each one's rate.
create function {schema}.limits_of(options text, out keys text[], out units bigint[]) language plpgsql immutable as $$
begin
  keys := '{}';
  if strpos(options, '"limits"') = 0 then
    return;
  end if;
  select coalesce(array_agg(use ->> 'key' order by nth), '{}'),
    array_agg(coalesce((use ->> 'units')::bigint, 1000000) order by nth)
  into keys, units
  from jsonb_array_elements(options::jsonb -> 'limits') with ordinality as every (use, nth)
  where use ->> 'key' is not null;
exception when data_exception or program_limit_exceeded then
  keys := '{}';
end $$;

-- Keys. These are called by the functions below, which set the search path. Not in plain SQL, which would be planned again
-- with every call.

create function {schema}.limit_of(key text) returns text language sql immutable as
  $$ select pg_catalog.split_part(key, '/', 1) $$;

-- The queues where jobs wait behind a key: from one queue to the next, never from job to job.
create function {schema}.waiting_queues(wanted text) returns setof text language plpgsql stable as $$
declare
  next text;
begin
  select queue into next from {schema}.job where state = 'available' and limit_key = wanted order by queue limit 1;
  while next is not null loop
    return next next;
    select queue into next from {schema}.job
    where state = 'available' and limit_key = wanted and queue > next order by queue limit 1;
  end loop;
  select queue into next from {schema}.job where state = 'pending' and limit_key = wanted order by queue limit 1;
  while next is not null loop
    return next next;
    select queue into next from {schema}.job
    where state = 'pending' and limit_key = wanted and queue > next order by queue limit 1;
  end loop;
end $$;

-- The types that wait behind a key in a queue, in the same way.
create function {schema}.types_behind(wanted_key text, wanted text) returns setof text language sql stable
set search_path = pg_catalog set enable_seqscan = off as $$
  with recursive kind (type) as (
    (select type from {schema}.job
     where state = 'available' and limit_key = wanted_key and queue = wanted order by type limit 1)
    union all
    select (
      select job.type from {schema}.job
      where state = 'available' and limit_key = wanted_key and queue = wanted and job.type > kind.type
      order by job.type limit 1
    )
    from kind where kind.type is not null
  )
  select type from kind where type is not null
$$;

-- The keys behind which jobs wait, of one limit or of any (null), in the same way.
create function {schema}.waiting_keys(of_limit text) returns setof text language sql stable
set search_path = pg_catalog set enable_seqscan = off as $$
  with recursive next (key) as (
    (select limit_key from {schema}.job
     where state = 'available' and limit_key is not null and limit_key >= coalesce(of_limit, '')
     order by limit_key limit 1)
    union all
    select (
      select limit_key from {schema}.job
      where state = 'available' and limit_key is not null and limit_key > next.key order by limit_key limit 1
    )
    from next where next.key is not null and (of_limit is null or next.key < of_limit || '0')
  ), parked (key) as (
    (select limit_key from {schema}.job
     where state = 'pending' and limit_key is not null and limit_key >= coalesce(of_limit, '')
     order by limit_key limit 1)
    union all
    select (
      select limit_key from {schema}.job
      where state = 'pending' and limit_key is not null and limit_key > parked.key order by limit_key limit 1
    )
    from parked where parked.key is not null and (of_limit is null or parked.key < of_limit || '0')
  )
  select key from (select key from next union select key from parked) as found
  where key is not null and (of_limit is null or {schema}.limit_of(key) = of_limit)
$$;

-- Make rows for the buckets of these keys: there is nothing else to lock. Others may be doing the same, and wait for a
-- bucket that the caller holds, so this waits for a moment only. Whether it went well.
create function {schema}.make_buckets(keys text[], now_at bigint) returns boolean language plpgsql volatile
set lock_timeout = '20ms' as $$
begin
  insert into {schema}.record (name, value, version, at)
  select 'bucket/' || key, null, 0, now_at from unnest(keys) as key order by 1
  on conflict (name) do nothing;
  return true;
exception when lock_not_available then
  return false;
end $$;

-- Lock the buckets of these keys, given in their order, and read them with the settings of their limits. Waits for a lock
-- only where nothing is held yet; a key that can't be had is left out. The clock is read after that, if `now_at` is null.
create function {schema}.open_keys(keys text[], may_wait boolean, now_at bigint) returns {schema}.kept_key[]
language plpgsql volatile as $$
declare
  missing text[];
  locked text[];
  row record;
  settings bigint[];
  bucket bigint[];
  one {schema}.kept_key;
  every {schema}.kept_key[] := '{}';
begin
  if may_wait then
    locked := array(
      select name from {schema}.record where name = any(array(select 'bucket/' || key from unnest(keys) as key))
      order by name for update
    );
  else
    locked := array(
      select name from {schema}.record where name = any(array(select 'bucket/' || key from unnest(keys) as key))
      for update skip locked
    );
  end if;
  if cardinality(locked) < cardinality(keys) then
    missing := array(
      select key from unnest(keys) as key
      where not exists (select 1 from {schema}.record where name = 'bucket/' || key offset 0)
        and exists (
          select 1 from {schema}.record where name = 'limit/' || {schema}.limit_of(key) and value is not null offset 0)
    );
    if cardinality(missing) > 0 and {schema}.make_buckets(missing, {schema}.now_ms()) then
      locked := locked || array(
        select name from {schema}.record where name = any(array(select 'bucket/' || key from unnest(missing) as key))
        for update skip locked
      );
    end if;
  end if;
  now_at := coalesce(now_at, {schema}.now_ms());
  for row in
    select asked.key, limits.value as settings, buckets.name as bucket_name, buckets.value as bucket
    from unnest(keys) with ordinality as asked (key, nth)
    left join lateral (
      select value from {schema}.record where name = 'limit/' || {schema}.limit_of(asked.key) offset 0
    ) as limits on true
    left join lateral (
      select name, value from {schema}.record where name = 'bucket/' || asked.key offset 0
    ) as buckets on true
    order by asked.nth
  loop
    settings := {schema}.numbers(row.settings, '{at_once,burst,refill,period_ms}', '{at_once,burst}');
    continue when 'bucket/' || row.key <> all(locked) and (settings is not null or row.bucket_name is not null);
    bucket := {schema}.numbers(row.bucket, '{tokens,at,closed_until,starts}', '{}');
    if settings[4] <= 0 then
      settings := null;
    end if;
    one := (row.key, settings[1], settings[2], coalesce(settings[3], 0), coalesce(settings[4], 1),
      coalesce(settings[2], 0), now_at, 0, 0, null, false)::{schema}.kept_key;
    if bucket is not null then
      one.tokens := least(one.tokens::numeric, coalesce(bucket[1], 0)::numeric + div(
        greatest(now_at - coalesce(bucket[2], 0), 0)::numeric * one.refill, one.period_ms));
      one.at := greatest(now_at, coalesce(bucket[2], 0));
      one.closed_until := coalesce(bucket[3], 0);
      one.starts := coalesce(bucket[4], 0);
    end if;
    every := every || one;
  end loop;
  return every;
end $$;

create function {schema}.keys_of(every {schema}.kept_key[]) returns text[] language plpgsql immutable as $$
declare
  one {schema}.kept_key;
  keys text[] := '{}';
begin
  foreach one in array every loop
    keys := keys || one.key;
  end loop;
  return keys;
end $$;

-- Write what the rates of these keys have left.
create function {schema}.close_keys(every {schema}.kept_key[], now_at bigint) returns void language plpgsql volatile as $$
declare
  one {schema}.kept_key;
begin
  foreach one in array every loop
    if one.is_changed then
      update {schema}.record
      set value = format(
          '{"tokens":%s,"at":%s,"closed_until":%s,"starts":%s}', one.tokens, one.at, one.closed_until, one.starts),
        version = version + 1, at = now_at
      where name = 'bucket/' || one.key;
    end if;
  end loop;
end $$;

-- How many permits a key has; nobody counts them where a limit has no `at_once`. `number` is how many rows there are, if
-- that is known. Those whose lease is over are removed once the key looks full. Somebody who ends such a lease right now,
-- and perhaps waits for our bucket, is not waited for.
create function {schema}.count_permits(one {schema}.kept_key, number bigint, now_at bigint) returns bigint
language plpgsql volatile as $$
begin
  if one.at_once is null then
    return 0;
  end if;
  if number is null then
    select count(*) into number from {schema}.permit where key = one.key;
  end if;
  if number >= one.at_once then
    delete from {schema}.permit where ctid = any(array(
      select permit.ctid from {schema}.permit
      where permit.key = one.key and case when until is null then not exists (
          select 1 from {schema}.job where job.n = permit.n and job.epoch = permit.epoch and job.state = 'active' offset 0
        ) else until <= now_at end
      for update skip locked
    ));
    select count(*) into number from {schema}.permit
    where permit.key = one.key and case when until is null then exists (
        select 1 from {schema}.job where job.n = permit.n and job.epoch = permit.epoch and job.state = 'active' offset 0
      ) else until > now_at end;
  end if;
  return number;
end $$;

-- When a permit of so many units may start, where others hold so many: `start_time` of core/shared_limits.py.
create function {schema}.start_time(one {schema}.kept_key, held bigint, units bigint, now_at bigint) returns bigint
language plpgsql immutable as $$
declare
  periods bigint := (now_at - one.closed_until) / 1000;
  missing numeric := greatest(units, 1) - one.tokens;
begin
  if one.closed_until > now_at then
    return one.closed_until;
  elsif held >= one.at_once then
    return null;
  elsif one.closed_until <> 0 and periods < 10 and one.starts >= (2 << periods::integer) then
    return one.closed_until + (periods + 1) * 1000;
  elsif one.burst is null or missing <= 0 then
    return now_at;
  elsif one.refill <= 0 then
    return null;
  end if;
  return now_at + least(ceil(missing * one.period_ms / one.refill), 1e15)::bigint;
end $$;

-- The key after a permit of so many units has started. `own` are permits that it replaces.
create function {schema}.started(one {schema}.kept_key, own bigint, units bigint) returns {schema}.kept_key
language plpgsql immutable as $$
begin
  one.held := one.held - own + 1;
  if one.burst is not null and units <> 0 then
    one.tokens := one.tokens - units;
    one.is_changed := true;
  end if;
  if one.closed_until <> 0 then
    one.starts := one.starts + 1;
    one.is_changed := true;
  end if;
  return one;
end $$;

-- Let claims look at keys, in whatever queue jobs wait behind them. Jobs that were not committed yet can't be seen
-- here, so the recheck names no queue. Answers with the topics to wake.
create function {schema}.recheck_keys(keys text[], now_at bigint) returns text[] language plpgsql volatile as $$
begin
  insert into {schema}.recheck (queue, key, at) select null, key, now_at from unnest(keys) as key;
  return array(
    select 'limit:' || key from unnest(keys) as key
    union all
    select distinct 'queue:' || queue from unnest(keys) as key cross join lateral {schema}.waiting_queues(key) as queue
  );
end $$;

create function {schema}.has_at_once(wanted text) returns boolean language plpgsql stable as $$
begin
  return exists (
    select 1 from {schema}.record
    where name = 'limit/' || {schema}.limit_of(wanted) and value is not null
      and ({schema}.numbers(value, '{at_once,burst,refill,period_ms}', '{at_once,burst}'))[1] is not null
  );
end $$;

-- Commit, turn: the permits of jobs end with their leases. Locks no bucket. Answers with the topics to wake.
create function {schema}.end_permits(jobs bigint[]) returns text[] language plpgsql volatile
set search_path = pg_catalog set enable_seqscan = off as $$
declare
  keys text[];
begin
  with ended as (delete from {schema}.permit where n = any(jobs) returning key)
  select array_agg(distinct key) into keys from ended;
  return {schema}.recheck_keys(
    array(select key from unnest(keys) as key where {schema}.has_at_once(key)), {schema}.now_ms());
end $$;

-- put_record: the settings or a bucket of a limit have changed. Also for keys behind which we see nobody: somebody may be
-- moving there just now, under the lock of a bucket that was there before.
create function {schema}.recheck_limit(wanted text) returns text[] language sql volatile
set search_path = pg_catalog set enable_seqscan = off as $$
  select {schema}.recheck_keys(array(
    select {schema}.waiting_keys(wanted)
    union
    select substr(name, 8) from {schema}.record
    where name = 'bucket/' || wanted or (name > 'bucket/' || wanted || '/' and name < 'bucket/' || wanted || '0')
  ), {schema}.now_ms())
$$;

-- Claiming.

-- Promote: scheduled, retryable → available; activate: pending → available. A job with limits waits behind its first key.
create function {schema}.promote(wanted text, due_most bigint, now_at bigint) returns boolean
language plpgsql volatile as $$
begin
  with due as (
    select job.n, job.state as before from {schema}.job
    where state in ('scheduled', 'retryable', 'pending') and queue = wanted and run_at <= now_at
      and (expires_at is null or expires_at > now_at)
    order by run_at, n limit due_most for update skip locked
  ), moved as (
    update {schema}.job set state = 'available', version = job.version + 1, summed = job.summed + 1, waits = null,
      run_at = case when due.before = 'pending' then now_at else job.run_at end,
      limit_key = case when due.before <> 'pending' then job.limit_key
        when strpos(job.options, '"limits"') > 0 then (({schema}.limits_of(job.options)).keys)[1] end
    from due where job.n = due.n
    returning job.n, job.version, job.epoch, due.before, job.limit_key
  ), told as (
    insert into {schema}.entry (n, version, at, event, before, after, actor, epoch, note)
    select n, version, now_at, case when before = 'pending' then 'activate' else 'promote' end, before,
      'available', 'time', epoch, null
    from moved
  ), rechecked as (
    insert into {schema}.recheck (queue, key, at)
    select distinct wanted, limit_key, now_at from moved where limit_key is not null
  )
  insert into {schema}.tally (queue, state, jobs)
  select wanted, before, -count(*) from moved group by before
  union all
  select wanted, 'available', count(*) from moved having count(*) > 0;
  return found;
end $$;

-- Wake jobs of a queue whose steps wait for a permit of this key, while there is room, and keep it for them for 30 seconds.
-- `most` is for how many its rate has units (null: it has no rate). A job that has limits of its own waits behind the first
-- of them then; `looked_at` are the keys that the claim looks at after this anyway. Answers how many were woken.
create function {schema}.wake_parked(
  wanted text, one {schema}.kept_key, most bigint, looked_at text[], now_at bigint) returns bigint
language plpgsql volatile as $$
declare
  woken bigint;
begin
  with due as (
    select n from {schema}.job where state = 'pending' and limit_key = one.key and queue = wanted
    order by n limit least(100, most, one.at_once - one.held) for update skip locked
  ), moved as (
    update {schema}.job set state = 'available', version = job.version + 1, summed = job.summed + 1, waits = null,
      run_at = now_at, limit_key = (({schema}.limits_of(job.options)).keys)[1]
    where n = any(array(select n from due))
    returning job.n, job.version, job.epoch, job.limit_key
  ), told as (
    insert into {schema}.entry (n, version, at, event, before, after, actor, epoch, note)
    select n, version, now_at, 'activate', 'pending', 'available', 'limit', epoch, null from moved
  ), kept as (
    insert into {schema}.permit (key, n, path, epoch, try_number, until)
    select one.key, n, '~reserved', 0, 1, now_at + 30000 from moved
    on conflict (key, n, path) do update set until = excluded.until
  ), rechecked as (
    insert into {schema}.recheck (queue, key, at)
    select distinct wanted, limit_key, now_at from moved where limit_key <> all(looked_at)
    union all
    select null, one.key, now_at + 30000 from moved having count(*) > 0
  ), counted as (
    insert into {schema}.tally (queue, state, jobs)
    select wanted, 'pending', -count(*) from moved having count(*) > 0
    union all
    select wanted, 'available', count(*) from moved having count(*) > 0
  )
  select count(*) into woken from moved;
  return woken;
end $$;

-- Claim, where some of these queues have keys to look at: jobs without limits and those behind the keys, in one order, each
-- with all its permits or not at all. Begins at the front.
--
-- First the rechecks are locked, and those for every queue dealt out, then the buckets of all keys that come up with them:
-- after that nothing is waited for. A job that somebody else holds, or whose other key somebody else holds, is looked at
-- again 50 ms later. `tried` are rows that were read; of each key as many are read as there may be room for, and one more,
-- which finds that there is none.
create function {schema}.claim_limited(
  claimer text, queues text[], most bigint, due_most bigint, known text[], now_at bigint)
returns setof {schema}.live language plpgsql volatile as $$
declare
  wanted text;
  name text;
  left_over bigint := most;
  served text[];
  freed text[];
  dealt_queue text[] := '{}';  -- what was dealt out to queues of ours: they needn't be told by a row
  dealt_key text[] := '{}';
  looked_at text[] := '{}';    -- the queues that we came to
  keys text[];       -- that this queue is to look at, in their order
  going text[];      -- those of them that are not full
  reach bigint[];    -- and how many jobs of each to read
  opened text[] := '{}';  -- the keys whose buckets we hold
  every {schema}.kept_key[] := '{}';  -- what we know of them, in the same order
  one {schema}.kept_key;
  more {schema}.kept_key[];
  missing text[];
  kinds text[];
  tried tid[];
  came tid[];
  came_n bigint[];
  came_key text[];
  held_n bigint[];
  held_tid tid[];
  held_epoch bigint[];
  held_options text[];
  having_some bigint[];  -- those that have permits already: kept for them, or left by an old program
  place integer;
  spot integer;
  last_options text;
  uses text[];
  units bigint[];
  own bigint[];
  stopped_by text;
  free_at bigint;
  picked tid[];
  replaces boolean;
  got_key text[];
  got_n bigint[];
  got_epoch bigint[];
  moved_tid tid[];
  moved_key text[];
  full_keys text[];
  full_until bigint[];
  found_key text[];
  found_number bigint[];
  found_parked boolean[];
  again_key text[];
  again_at bigint[];
  busy text[];
  asleep_key text[];      -- the keys behind which jobs that gave up their slots wait on
  asleep_until bigint[];  -- and when one of them may be woken
  unit bigint;
  awaited bigint;
  taken_now bigint;
  woken bigint;
  news {schema}.live;
begin
  served := array(
    select asked.queue from unnest(queues) with ordinality as asked (queue, nth)
    where not exists (select 1 from {schema}.record where record.name = 'pause/' || asked.queue and value is not null)
    order by nth
  );
  with for_all as (
    select ctid, key from {schema}.recheck where queue is null and at <= now_at order by at desc limit 100
    for update skip locked
  ), for_ours as (
    select due.key from unnest(served) as asked (queue) cross join lateral (
      select key from {schema}.recheck where recheck.queue = asked.queue and at <= now_at order by at desc limit 100
      for update skip locked
    ) as due
  ), gone as (
    delete from {schema}.recheck where ctid = any(array(select ctid from for_all))
  )
  select array(select distinct key from for_all), array(select key from for_all union select key from for_ours)
  into freed, keys;
  keys := array(
    select key from (
      select key from unnest(keys) as key
      union
      select use.key from unnest(keys) as behind (key) cross join unnest(served) as asked (queue) cross join lateral (
        select options from {schema}.job
        where state = 'available' and limit_key = behind.key and job.queue = asked.queue limit 10
      ) as next cross join lateral unnest(({schema}.limits_of(next.options)).keys) as use (key)
      where next.options like '%"key"%"key"%'
    ) as needed order by key collate "C"
  );
  every := {schema}.open_keys(keys, true, now_at);
  opened := {schema}.keys_of(every);
  -- Under the locks, so that we see jobs that were moved behind these keys.
  foreach name in array freed loop
    for wanted in select {schema}.waiting_queues(name) loop
      if wanted = any(served) then
        dealt_queue := dealt_queue || wanted;
        dealt_key := dealt_key || name;
      else
        insert into {schema}.recheck (queue, key, at) values (wanted, name, now_at);
        news.queue := wanted;
        return next news;
      end if;
    end loop;
  end loop;

  foreach wanted in array served loop
    news.queue := wanted;
    if exists (
      select 1 from {schema}.job
      where state in ('scheduled', 'retryable', 'pending') and queue = wanted and run_at <= now_at
    ) and {schema}.promote(wanted, due_most, now_at) then
      return next news;
    end if;
    with due as (
      select ctid, key from {schema}.recheck where queue = wanted and at <= now_at order by at desc limit 100
      for update skip locked
    ), gone as (
      delete from {schema}.recheck where ctid = any(array(select ctid from due))
    )
    select array(
      select key from (
        select key from due
        union
        select key from unnest(dealt_queue, dealt_key) as dealt (queue, key) where queue = wanted
      ) as due_now
      order by key collate "C"
    ) into keys;
    if not keys <@ opened then
      missing := array(select key from unnest(keys) as key where key <> all(opened) order by key collate "C");
      every := every || {schema}.open_keys(missing, cardinality(opened) = 0, now_at);
      opened := {schema}.keys_of(every);
      insert into {schema}.recheck (queue, key, at)
      select wanted, key, now_at + 50 from unnest(missing) as key where key <> all(opened);
      keys := array(select key from unnest(keys) as key where key = any(opened) order by key collate "C");
    end if;

    going := '{}';
    reach := '{}';
    busy := '{}';
    asleep_key := '{}';
    asleep_until := '{}';
    select array_agg(counted.key), array_agg(counted.number), array_agg(counted.is_parked)
    into found_key, found_number, found_parked
    from (
      select asked.key, (select count(*) from {schema}.permit where permit.key = asked.key) as number, exists (
          select 1 from {schema}.job where state = 'pending' and limit_key = asked.key and queue = wanted offset 0
        ) as is_parked
      from unnest(keys) as asked (key)
    ) as counted;
    foreach name in array keys loop
      spot := array_position(opened, name);
      place := array_position(found_key, name);
      one := every[spot];
      if one.held is null then
        one.held := {schema}.count_permits(one, found_number[place], now_at);
      end if;
      if found_parked[place] then
        -- Its rate must have a whole unit for each job that was woken before and has not come for its permit yet, too.
        unit := greatest(least(1000000, one.burst), 1);
        awaited := 0;
        if one.burst is not null then
          select count(*) into awaited from {schema}.permit where permit.key = name and until > now_at;
        end if;
        if {schema}.start_time(one, one.held, unit * (awaited + 1), now_at) <= now_at then
          woken := {schema}.wake_parked(
            wanted, one, case when one.burst is not null then one.tokens / unit - awaited end, keys, now_at);
          one.held := one.held + woken;
          awaited := awaited + woken;
          if woken > 0 then
            return next news;
          end if;
          if {schema}.start_time(one, one.held, unit * (awaited + 1), now_at) <= now_at and exists (
            select 1 from {schema}.job where state = 'pending' and limit_key = name and queue = wanted
          ) then
            busy := busy || name;
          end if;
        end if;
        if name <> all(busy) then
          asleep_key := asleep_key || name;
          asleep_until := asleep_until || {schema}.start_time(one, one.held, unit * (awaited + 1), now_at);
        end if;
      end if;
      every[spot] := one;
      going := going || name;
      reach := reach || 1 + case when {schema}.start_time(one, one.held, 0, now_at) <= now_at
        then least(one.at_once - one.held, left_over, case when one.burst is not null then one.tokens / 1000000 + 1 end)
        else 0 end;
    end loop;

    kinds := known;
    if known is null then
      kinds := array(select {schema}.ready_types(wanted, null));
    end if;
    tried := '{}';
    picked := '{}';
    replaces := false;
    got_key := '{}';
    got_n := '{}';
    got_epoch := '{}';
    moved_tid := '{}';
    moved_key := '{}';
    full_keys := '{}';
    full_until := '{}';
    while cardinality(picked) < left_over and cardinality(moved_tid) < 1000 loop
      select array_agg(next.ctid order by next.priority desc, next.run_at, next.n),
        array_agg(next.n order by next.priority desc, next.run_at, next.n),
        array_agg(next.key order by next.priority desc, next.run_at, next.n)
      into came, came_n, came_key
      from (
        select * from (
          select free.* from unnest(kinds) as asked (type) cross join lateral (
            select job.ctid, priority, run_at, n, null::text as key from {schema}.job
            where state = 'available' and limit_key is null and queue = wanted and job.type = asked.type
              and run_at <= now_at and (expires_at is null or expires_at > now_at) and job.ctid <> all(tried)
            order by priority desc, run_at, n limit left_over - cardinality(picked)
          ) as free
          union all
          select waiting.* from unnest(going, reach) as behind (key, reach)
          cross join lateral (
            select unnest(known) as type where known is not null
            union all
            select {schema}.types_behind(behind.key, wanted) where known is null
          ) as asked
          cross join lateral (
            select job.ctid, priority, run_at, n, limit_key from {schema}.job
            where state = 'available' and limit_key = behind.key and queue = wanted and job.type = asked.type
              and run_at <= now_at and (expires_at is null or expires_at > now_at) and job.ctid <> all(tried)
            order by priority desc, run_at, n limit behind.reach
          ) as waiting
        ) as every_job
        order by priority desc, run_at, n limit left_over - cardinality(picked) + cardinality(going)
      ) as next;
      exit when came is null;
      tried := tried || came;
      select array_agg(held.n), array_agg(held.ctid), array_agg(held.epoch), array_agg(held.options)
      into held_n, held_tid, held_epoch, held_options
      from (
        select job.n, job.ctid, job.epoch, case when job.limit_key is not null then job.options end as options
        from {schema}.job where job.ctid = any(came) and state = 'available' and queue = wanted
        for update skip locked
      ) as held;
      having_some := array(select n from {schema}.permit where n = any(came_n));
      for nth in 1 .. cardinality(came) loop
        exit when cardinality(picked) >= left_over;
        place := array_position(held_n, came_n[nth]);
        if came_key[nth] is null then
          if place is not null and held_options[place] is null then
            picked := picked || held_tid[place];
          end if;
          continue;
        end if;
        continue when came_key[nth] <> all(going);
        if place is null then
          busy := busy || came_key[nth];
          continue;
        end if;
        if held_options[place] is distinct from last_options then  -- mostly they are the same
          last_options := held_options[place];
          select * into uses, units from {schema}.limits_of(last_options);
        end if;
        own := '{}';
        stopped_by := null;
        for use in 1 .. cardinality(uses) loop
          spot := array_position(opened, uses[use]);
          if spot is null then
            more := {schema}.open_keys(array[uses[use]], false, now_at);
            if cardinality(more) = 0 then
              busy := busy || came_key[nth];
              own := null;
              exit;
            end if;
            every := every || more;
            opened := opened || uses[use];
            spot := cardinality(opened);
          end if;
          one := every[spot];
          if one.held is null then
            one.held := {schema}.count_permits(one, null, now_at);
            every[spot] := one;
          end if;
          own := own || 0::bigint;
          if one.held > 0 and came_n[nth] = any(having_some) then
            own[use] := (
              select count(*) from {schema}.permit
              where permit.key = uses[use] and n = came_n[nth] and path in ('', '~reserved')
            );
          end if;
          free_at := {schema}.start_time(one, one.held - own[use], units[use], now_at);
          if free_at is null or free_at > now_at then
            stopped_by := uses[use];
            exit;
          end if;
        end loop;
        continue when own is null;
        if stopped_by is null then
          picked := picked || held_tid[place];
          for use in 1 .. cardinality(uses) loop
            spot := array_position(opened, uses[use]);
            every[spot] := {schema}.started(every[spot], own[use], units[use]);
            replaces := replaces or own[use] > 0;
            got_key := got_key || uses[use];
            got_n := got_n || came_n[nth];
            got_epoch := got_epoch || held_epoch[place] + 1;
          end loop;
        elsif stopped_by = came_key[nth] then  -- nobody behind this key can start
          full_keys := full_keys || stopped_by;
          full_until := full_until || free_at;
          place := array_position(going, stopped_by);
          going := going[:place - 1] || going[place + 1:];
          reach := reach[:place - 1] || reach[place + 1:];
        else
          moved_tid := moved_tid || held_tid[place];
          moved_key := moved_key || stopped_by;
          if free_at is not null then
            insert into {schema}.recheck (queue, key, at) values (wanted, stopped_by, free_at);
          end if;
        end if;
      end loop;
    end loop;

    if cardinality(moved_tid) > 0 then
      update {schema}.job set limit_key = moved.key from unnest(moved_tid, moved_key) as moved (row, key)
      where job.ctid = any(moved_tid) and job.ctid = moved.row;
    end if;
    if cardinality(got_key) > 0 then
      if replaces then
        delete from {schema}.permit using unnest(got_key, got_n) as got (key, n)
        where permit.key = got.key and permit.n = got.n and permit.path = '~reserved';
      end if;
      insert into {schema}.permit (key, n, path, epoch, try_number)
      select key, n, '', epoch, 1 from unnest(got_key, got_n, got_epoch) as got (key, n, epoch)
      on conflict (key, n, path) do update set epoch = excluded.epoch, try_number = 1, until = null;
    end if;
    return query
      with taken as (
        update {schema}.job set state = 'active', version = job.version + 1, summed = job.summed + 1,
          epoch = job.epoch + 1, worker = claimer, claimed_at = now_at, untold = job.version + 1
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

    -- The next claim looks at a key again: when there may be room, or at once if there is some for those who still wait.
    again_key := '{}';
    again_at := '{}';
    foreach name in array keys loop
      one := every[array_position(opened, name)];
      place := array_position(full_keys, name);
      free_at := case when place is null then {schema}.start_time(one, one.held, 0, now_at) else full_until[place] end;
      spot := array_position(asleep_key, name);
      if place is null and spot is not null and not exists (
        select 1 from {schema}.job where state = 'available' and limit_key = name and queue = wanted
      ) then
        free_at := asleep_until[spot];
      end if;
      if name = any(busy) then
        free_at := now_at + 50;
      elsif free_at <= now_at then
        free_at := -now_at;
      end if;
      if free_at is not null then
        again_key := again_key || name;
        again_at := again_at || free_at;
      end if;
    end loop;
    if again_key <> '{}' then
      insert into {schema}.recheck (queue, key, at)
      select wanted, again.key, again.at from unnest(again_key, again_at) as again (key, at)
      where exists (
          select 1 from {schema}.job where state = 'available' and limit_key = again.key and queue = wanted offset 0
        ) or exists (
          select 1 from {schema}.job where state = 'pending' and limit_key = again.key and queue = wanted offset 0
        );
    end if;
    looked_at := looked_at || wanted;
    exit when left_over <= 0;
  end loop;
  if dealt_queue <> '{}' then
    insert into {schema}.recheck (queue, key, at)
    select queue, key, now_at from unnest(dealt_queue, dealt_key) as dealt (queue, key) where queue <> all(looked_at);
  end if;
  perform {schema}.close_keys(every, now_at);
end $$;

-- The types of which a queue has something available that needs no permit, as before (see the second migration).
create or replace function {schema}.ready_types(wanted text, most bigint) returns setof text language sql stable
set search_path = pg_catalog set enable_seqscan = off as $$
  with recursive kind (type) as (
    (select type from {schema}.job
     where state = 'available' and limit_key is null and queue = wanted order by type limit 1)
    union all
    select (
      select job.type from {schema}.job
      where state = 'available' and limit_key is null and queue = wanted and job.type > kind.type
      order by job.type limit 1
    )
    from kind where kind.type is not null
  )
  select type from kind where type is not null limit most
$$;

-- Claim, as before (see the second and the fourth migration), while there is no key to look at.
create or replace function {schema}.claim(
  claimer text, queues text[], most bigint, due_most bigint, known text[], from_level bigint, from_run_at bigint,
  from_n bigint)
returns setof {schema}.live language plpgsql volatile
set search_path = pg_catalog set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
  now_at bigint := {schema}.now_ms();
  wanted text;
  kinds text[];
  left_over bigint := most;
  picked tid[];  -- we hold these rows, so they stay where they are
  tried tid[];
  came tid[];
  taken_now bigint;
  from_floor boolean;
  news {schema}.live;
begin
  if cardinality(queues) > 0 and (
    exists (select 1 from {schema}.recheck where queue = any(queues) and at <= now_at)
    or exists (select 1 from {schema}.recheck where queue is null and at <= now_at)
  ) then
    return query select * from {schema}.claim_limited(claimer, queues, most, due_most, known, now_at);
    return;
  end if;
  foreach wanted in array queues loop
    if exists (select 1 from {schema}.record where name = 'pause/' || wanted and value is not null) then
      continue;
    end if;
    from_floor := known is not null and from_level is not null and wanted = queues[1] and not exists (
      select 1 from unnest(known) as asked (type) where (
        select true from {schema}.job
        where state = 'available' and limit_key is null and queue = wanted and job.type = asked.type
          and priority > from_level
        order by priority desc, run_at, n limit 1
      )
    );
    loop
      if from_floor then
        kinds := array(
          select asked.type from unnest(known) as asked (type) where (
            select true from {schema}.job
            where state = 'available' and limit_key is null and queue = wanted and job.type = asked.type
              and priority = from_level and (run_at, n) >= (from_run_at, from_n)
            order by run_at, n limit 1
          )
        );
      else
        if exists (
          select 1 from {schema}.job
          where state in ('scheduled', 'retryable', 'pending') and queue = wanted and run_at <= now_at
        ) then
          if {schema}.promote(wanted, due_most, now_at) then
            news.queue := wanted;
            return next news;
          end if;
          if exists (select 1 from {schema}.recheck where queue = wanted and at <= now_at) then
            return query select * from {schema}.claim_limited(
              claimer, queues[array_position(queues, wanted):], left_over, due_most, known, now_at);
            return;
          end if;
        end if;
        if known is null then
          kinds := array(select {schema}.ready_types(wanted, null));
        else
          kinds := array(
            select asked.type from unnest(known) as asked (type) where (
              select true from {schema}.job
              where state = 'available' and limit_key is null and queue = wanted and job.type = asked.type
              order by priority desc, run_at, n limit 1
            )
          );
        end if;
      end if;
      picked := '{}';
      if cardinality(kinds) = 1 and from_floor then
        picked := array(
          select job.ctid from {schema}.job
          where state = 'available' and limit_key is null and queue = wanted and type = kinds[1]
            and priority = from_level and (run_at, n) >= (from_run_at, from_n) and run_at <= now_at
            and (expires_at is null or expires_at > now_at)
          order by run_at, n limit left_over for update skip locked
        );
      elsif cardinality(kinds) = 1 then
        picked := array(
          select job.ctid from {schema}.job
          where state = 'available' and limit_key is null and queue = wanted and type = kinds[1] and run_at <= now_at
            and (expires_at is null or expires_at > now_at)
          order by priority desc, run_at, n limit left_over for update skip locked
        );
      elsif cardinality(kinds) > 1 then
        tried := '{}';
        loop
          if from_floor then
            came := array(
              select next.ctid from unnest(kinds) as asked (type) cross join lateral (
                select job.ctid, run_at, n from {schema}.job
                where state = 'available' and limit_key is null and queue = wanted and job.type = asked.type
                  and priority = from_level and (run_at, n) >= (from_run_at, from_n) and run_at <= now_at
                  and (expires_at is null or expires_at > now_at) and job.ctid <> all(tried)
                order by run_at, n limit left_over - cardinality(picked)
              ) as next
              order by next.run_at, next.n limit left_over - cardinality(picked)
            );
          else
            came := array(
              select next.ctid from unnest(kinds) as asked (type) cross join lateral (
                select job.ctid, priority, run_at, n from {schema}.job
                where state = 'available' and limit_key is null and queue = wanted and job.type = asked.type
                  and run_at <= now_at and (expires_at is null or expires_at > now_at) and job.ctid <> all(tried)
                order by priority desc, run_at, n limit left_over - cardinality(picked)
              ) as next
              order by next.priority desc, next.run_at, next.n limit left_over - cardinality(picked)
            );
          end if;
          exit when cardinality(came) = 0;
          tried := tried || came;
          picked := picked || array(
            select job.ctid from {schema}.job
            where job.ctid = any(came) and state = 'available' and limit_key is null and queue = wanted and type = any(kinds)
            for update skip locked
          );
          exit when cardinality(picked) >= left_over;
        end loop;
      end if;
      return query
        with taken as (
          update {schema}.job set state = 'active', version = job.version + 1, summed = job.summed + 1,
            epoch = job.epoch + 1, worker = claimer, claimed_at = now_at, untold = job.version + 1
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

-- Admit: give steps their permits, ask by ask, or take them back. The leases stay as they are until we have committed.
-- Answers each ask with whether it is admitted, the key that has no room, when to ask again, and the topics to wake; with
-- nothing, where the lease is not current.
create function {schema}.admit(given text)
returns table (admitted boolean, full_key text, free_at bigint, topics text[]) language plpgsql volatile
set search_path = pg_catalog set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
  asks jsonb := given;
  ask jsonb;
  settle jsonb;
  now_at bigint;
  mark text := (select value from {schema}.record where name = 'moved');
  job_ids text[];
  job_ns bigint[];
  job_epochs bigint[];
  keys text[];
  opened text[];
  every {schema}.kept_key[];
  one {schema}.kept_key;
  spot integer;
  job_n bigint;
  step_path text;
  uses text[];
  units bigint[];
  own bigint[];
begin
  if mark is not null then
    raise exception using errcode = 'HF003', message = mark;
  end if;
  select array_agg(held.id), array_agg(held.n), array_agg(held.epoch) into job_ids, job_ns, job_epochs
  from (
    select job.id, job.n, job.epoch from {schema}.job
    where job.n = any(array(
        select name.n from {schema}.name
        where name.id = any(array(select each ->> 'job' from jsonb_array_elements(asks) as each))
      ))
      and (job.n is null or job.state = 'active')  -- by the key: an `or` proves no partial index's condition
    order by job.n for no key update
  ) as held;
  keys := array(
    select distinct use ->> 'key' collate "C" from jsonb_array_elements(asks) as each
    cross join lateral jsonb_array_elements((each -> 'uses') || (each -> 'settles')) as use
    order by 1
  );
  every := {schema}.open_keys(keys, true, null);
  opened := {schema}.keys_of(every);
  if cardinality(opened) < cardinality(keys) then  -- a bucket was removed just now: once more
    raise serialization_failure;
  end if;
  now_at := {schema}.now_ms();
  for ask in select each from jsonb_array_elements(asks) as each loop
    admitted := null;
    full_key := null;
    free_at := null;
    topics := null;
    spot := array_position(job_ids, ask ->> 'job');
    if spot is null or job_epochs[spot] <> (ask ->> 'epoch')::bigint then
      return next;
      continue;
    end if;
    job_n := job_ns[spot];
    step_path := ask ->> 'path';
    admitted := true;

    if jsonb_array_length(ask -> 'uses') = 0 then
      for place in 0 .. jsonb_array_length(ask -> 'settles') - 1 loop
        settle := ask -> 'settles' -> place;
        spot := array_position(opened, settle ->> 'key');
        one := every[spot];
        continue when one.burst is null or not exists (
          select 1 from {schema}.permit where key = one.key and n = job_n and path = step_path
        );
        one.tokens := one.tokens - coalesce((settle ->> 'units')::bigint, 1000000);
        one.is_changed := true;
        every[spot] := one;
        topics := topics || {schema}.recheck_keys(array[one.key], now_at);
      end loop;
      with ended as (
        delete from {schema}.permit where n = job_n and path = step_path returning key
      )
      select coalesce(array_agg(key), '{}') into uses from ended;
      for place in 1 .. cardinality(uses) loop
        spot := array_position(opened, uses[place]);
        if spot is not null then
          one := every[spot];
          one.held := one.held - 1;
          every[spot] := one;
        end if;
        if {schema}.has_at_once(uses[place]) then
          topics := topics || {schema}.recheck_keys(array[uses[place]], now_at);
        end if;
      end loop;
      return next;
      continue;
    end if;

    select array_agg(use ->> 'key' order by nth), array_agg(coalesce((use ->> 'units')::bigint, 1000000) order by nth)
    into uses, units from jsonb_array_elements(ask -> 'uses') with ordinality as every_use (use, nth);
    if (
      select count(*) from {schema}.permit
      where n = job_n and key = any(uses) and path = step_path and epoch = (ask ->> 'epoch')::bigint
        and try_number = (ask ->> 'try_number')::bigint
    ) = cardinality(uses) then  -- the answer was lost
      return next;
      continue;
    end if;
    own := '{}';
    for use in 1 .. cardinality(uses) loop
      spot := array_position(opened, uses[use]);
      one := every[spot];
      if one.held is null then
        one.held := {schema}.count_permits(one, null, now_at);
        every[spot] := one;
      end if;
      own := own || (
        select count(*) from {schema}.permit where key = uses[use] and n = job_n and path in (step_path, '~reserved')
      );
      free_at := {schema}.start_time(one, case when one.held = 0 then 0 else one.held - own[use] end, units[use], now_at);
      if free_at is null or free_at > now_at then
        admitted := false;
        full_key := uses[use];
        exit;
      end if;
    end loop;
    if admitted then
      free_at := null;
      delete from {schema}.permit where n = job_n and key = any(uses) and path = '~reserved';
      insert into {schema}.permit (key, n, path, epoch, try_number)
      select use, job_n, step_path, (ask ->> 'epoch')::bigint, (ask ->> 'try_number')::bigint from unnest(uses) as use
      on conflict (key, n, path) do update set epoch = excluded.epoch, try_number = excluded.try_number, until = null;
      for use in 1 .. cardinality(uses) loop
        spot := array_position(opened, uses[use]);
        every[spot] := {schema}.started(every[spot], own[use], units[use]);
      end loop;
    end if;
    return next;
  end loop;
  perform {schema}.close_keys(every, now_at);
end $$;
