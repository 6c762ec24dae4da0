-- Fairness: available jobs with a fair key are outside the order of their queue; the keys take turns (core/fairness.py).
--
-- The column is made from the options, so no statement that writes a job has to know it. Who locks what: a claim of a queue
-- where jobs have fair keys takes an advisory lock for that queue and its types, before everything else, in the order of
-- the queues, so claims of one round follow one another. Nobody else takes it, a submit least of all. The record
-- `fair/QUEUE/TYPES/PRIORITY` has the key that started last.
--
-- The lock on the table is taken first, as in the second migration. Programs of the version before that still run claim by
-- the new function, so keys take turns there, too.
lock table {schema}.job in access exclusive mode;

create function {schema}.fair_of(options text) returns text language plpgsql immutable strict as $$
begin
  return nullif(options::jsonb ->> 'fair', '');
exception when data_exception or program_limit_exceeded then
  return null;
end $$;

alter table {schema}.job add column fair text collate "C" generated always as (
  case when pg_catalog.strpos(options, '"fair":') > 0 then {schema}.fair_of(options) end) stored;
alter table {schema}.job alter fair set statistics 10;

drop index {schema}.job_kind;
create index job_kind on {schema}.job (queue, type, priority desc, run_at, n)
  where state = 'available' and limit_key is null and fair is null;
create index job_fair on {schema}.job (queue, type, coalesce(limit_key, ''), priority desc, fair, run_at, n)
  where state = 'available' and fair is not null;

-- A short name for a set of types.
create function {schema}.types_name(known text[]) returns text language sql immutable
set search_path = pg_catalog as $$
  select case when known is null then '*' else substr(md5(array_to_string(
    array(select distinct type collate "C" from unnest(known) as type order by 1), E'\n')), 1, 12) end
$$;

create function {schema}.round_lock(queue text, round text) returns bigint language sql stable as
  $$ select pg_catalog.hashtextextended('{schema} fair ' || queue || '/' || round, 0) $$;

-- Where a claim looks: each type, without limits (an empty key), and behind each of these keys.
create function {schema}.sources(wanted text, kinds text[], known text[], going text[])
returns table (key text, type text) language sql stable as $$
  select '', asked.type from unnest(kinds) as asked (type)
  union all
  select behind.key, asked.type from unnest(going) as behind (key) cross join lateral (
    select unnest(known) as type where known is not null
    union all
    select {schema}.types_behind(behind.key, wanted) where known is null
  ) as asked
$$;

-- The highest priority of which there is something to take that was not tried, and whether some of it has fair keys.
create function {schema}.fair_level(
  wanted text, kinds text[], known text[], going text[], tried tid[], now_at bigint,
  out level bigint, out has_fair boolean)
language sql stable set search_path = pg_catalog set enable_seqscan = off as $$
  with source as materialized (select * from {schema}.sources(wanted, kinds, known, going)), first as (
    select next.priority, true as is_fair from source cross join lateral (
      select priority from {schema}.job
      where state = 'available' and fair is not null and queue = wanted and job.type = source.type
        and coalesce(limit_key, '') = source.key
        and run_at <= now_at and (expires_at is null or expires_at > now_at) and job.ctid <> all(tried)
      order by priority desc limit 1
    ) as next
    union all
    select next.priority, false from source cross join lateral (
      select priority from {schema}.job
      where state = 'available' and limit_key is null and fair is null and queue = wanted and job.type = source.type
        and run_at <= now_at and (expires_at is null or expires_at > now_at) and job.ctid <> all(tried)
      order by priority desc, run_at, n limit 1
    ) as next
    where source.key = ''
    union all
    select next.priority, false from source cross join lateral (
      select priority from {schema}.job
      where state = 'available' and limit_key = source.key and fair is null and queue = wanted and job.type = source.type
        and run_at <= now_at and (expires_at is null or expires_at > now_at) and job.ctid <> all(tried)
      order by priority desc, run_at, n limit 1
    ) as next
    where source.key <> ''
  )
  select priority, bool_or(is_fair) from first group by priority order by priority desc limit 1
$$;

-- The next fair keys of a priority in order: from one key to the next, never from job to job.
create function {schema}.fair_keys(
  wanted text, kinds text[], known text[], going text[], tried tid[], at_level bigint, after text, until text, most bigint,
  now_at bigint)
returns setof text language sql stable set search_path = pg_catalog set enable_seqscan = off as $$
  with recursive source as materialized (select * from {schema}.sources(wanted, kinds, known, going)), next (fair, nth) as (
    select after collate "C", 0
    union all
    select (
      select least.fair from source cross join lateral (
        select job.fair from {schema}.job
        where state = 'available' and job.fair is not null and queue = wanted and job.type = source.type
          and coalesce(limit_key, '') = source.key and priority = at_level and job.fair > next.fair and job.fair <= until
          and run_at <= now_at and (expires_at is null or expires_at > now_at) and job.ctid <> all(tried)
        order by job.fair limit 1
      ) as least order by least.fair limit 1
    ), nth + 1
    from next where next.fair is not null and nth < most
  )
  select fair from next where nth > 0 and fair is not null order by nth
$$;

-- The jobs of a priority whose turn it is, in the order of their turns: a job of each key after the last one, and around;
-- then the second job of each, and so on. Those without a fair key are one key together, the empty one.
create function {schema}.fair_candidates(
  wanted text, kinds text[], known text[], going text[], tried tid[], at_level bigint, last_fair text, most bigint,
  now_at bigint)
returns table (place bigint, spot tid, n bigint, key text, fair text) language plpgsql stable
set search_path = pg_catalog set enable_seqscan = off as $$
declare
  beyond_all text := repeat(chr(1114111), 201);
  ring text[];
  each_most bigint;
begin
  if last_fair is null then
    ring := array[''] || array(
      select {schema}.fair_keys(wanted, kinds, known, going, tried, at_level, '', beyond_all, most, now_at));
  else
    ring := array(
      select {schema}.fair_keys(wanted, kinds, known, going, tried, at_level, last_fair, beyond_all, most, now_at));
    if cardinality(ring) < most then
      ring := ring || array[''] || array(select {schema}.fair_keys(
        wanted, kinds, known, going, tried, at_level, '', last_fair, most - cardinality(ring), now_at));
    end if;
  end if;
  each_most := greatest(most - cardinality(ring) + 2, 1);  -- the empty key may have none
  return query
    with source as materialized (select * from {schema}.sources(wanted, kinds, known, going)), found as (
      select job.ctid as row, job.n as number, nullif(source.key, '') as behind, ring_key.fair as own, ring_key.nth,
        job.run_at
      from unnest(ring) with ordinality as ring_key (fair, nth) cross join source cross join lateral (
        select job.ctid, job.n, run_at from {schema}.job
        where state = 'available' and job.fair = ring_key.fair collate "C" and queue = wanted
          and job.type = source.type and coalesce(limit_key, '') = source.key and priority = at_level
          and run_at <= now_at and (expires_at is null or expires_at > now_at) and job.ctid <> all(tried)
        order by run_at, job.n limit each_most
      ) as job
      union all
      select job.ctid, job.n, null, '', ring_key.nth, job.run_at
      from unnest(ring) with ordinality as ring_key (fair, nth) cross join source cross join lateral (
        select job.ctid, job.n, run_at from {schema}.job
        where state = 'available' and limit_key is null and job.fair is null and queue = wanted and job.type = source.type
          and priority = at_level
          and run_at <= now_at and (expires_at is null or expires_at > now_at) and job.ctid <> all(tried)
        order by run_at, job.n limit each_most
      ) as job
      where ring_key.fair = '' and source.key = ''
      union all
      select job.ctid, job.n, source.key, '', ring_key.nth, job.run_at
      from unnest(ring) with ordinality as ring_key (fair, nth) cross join source cross join lateral (
        select job.ctid, job.n, run_at from {schema}.job
        where state = 'available' and limit_key = source.key and job.fair is null and queue = wanted
          and job.type = source.type and priority = at_level
          and run_at <= now_at and (expires_at is null or expires_at > now_at) and job.ctid <> all(tried)
        order by run_at, job.n limit each_most
      ) as job
      where ring_key.fair = '' and source.key <> ''
    ), placed as (
      select found.*, row_number() over (partition by found.own order by found.run_at, found.number) as turn from found
    )
    select row_number() over (order by placed.turn, placed.nth), placed.row, placed.number, placed.behind, placed.own
    from placed order by placed.turn, placed.nth limit most;
end $$;

-- Keep the key that started last at each priority, of those in the order of their starts.
create function {schema}.end_turns(of_round text, levels bigint[], keys text[], now_at bigint) returns void
language sql volatile as $$
  insert into {schema}.record (name, value, version, at)
  select 'fair/' || of_round || ended.level, '>' || (array_agg(ended.fair order by ended.nth desc))[1], 1, now_at
  from unnest(levels, keys) with ordinality as ended (level, fair, nth) group by ended.level
  on conflict (name) do update set value = excluded.value, version = record.version + 1, at = excluded.at
$$;

-- Claim, where some of these queues have keys to look at, or jobs with fair keys: as before (see the fifth migration).
create or replace function {schema}.claim_limited(
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
  turns text[];      -- the queues where jobs have fair keys, and whose rounds we hold
  is_fair boolean;   -- whether this queue is one of them
  round text := {schema}.types_name(known);
  level bigint;      -- the priority that we are at, in such a queue
  level_is_fair boolean;
  last_fair text;    -- the key whose turn it was last
  came_fair text[];
  turn_level bigint[];
  turn_fair text[];
  picked_n bigint[];
  news {schema}.live;
begin
  served := array(
    select asked.queue from unnest(queues) with ordinality as asked (queue, nth)
    where not exists (select 1 from {schema}.record where record.name = 'pause/' || asked.queue and value is not null)
    order by nth
  );
  turns := array(
    select asked.queue from unnest(served) as asked (queue)
    where exists (select 1 from {schema}.job where state = 'available' and fair is not null and job.queue = asked.queue)
    order by asked.queue collate "C"
  );
  foreach wanted in array turns loop
    perform pg_advisory_xact_lock({schema}.round_lock(wanted, round));
  end loop;
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
    is_fair := exists (
      select 1 from {schema}.job where state = 'available' and fair is not null and queue = wanted
    ) and (wanted = any(turns) or pg_try_advisory_xact_lock({schema}.round_lock(wanted, round)));
    level := null;
    level_is_fair := false;
    turn_level := '{}';
    turn_fair := '{}';
    picked_n := '{}';
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
      if is_fair then
        loop
          if level is null then
            select top.level, top.has_fair into level, level_is_fair
            from {schema}.fair_level(wanted, kinds, known, going, tried, now_at) as top;
            exit when level is null;
            last_fair := case when level_is_fair then (
              select substr(value, 2) from {schema}.record
              where record.name = 'fair/' || wanted || '/' || round || '/' || level and value like '>%'
            ) end;
          end if;
          select array_agg(next.spot order by next.place), array_agg(next.n order by next.place),
            array_agg(next.key order by next.place), array_agg(next.fair order by next.place)
          into came, came_n, came_key, came_fair
          from {schema}.fair_candidates(
            wanted, kinds, known, going, tried, level, last_fair, left_over - cardinality(picked), now_at) as next;
          exit when came is not null;
          level := null;  -- and on to the next priority
        end loop;
      else
      select array_agg(next.ctid order by next.priority desc, next.run_at, next.n),
        array_agg(next.n order by next.priority desc, next.run_at, next.n),
        array_agg(next.key order by next.priority desc, next.run_at, next.n)
      into came, came_n, came_key
      from (
        select * from (
          select free.* from unnest(kinds) as asked (type) cross join lateral (
            select job.ctid, priority, run_at, n, null::text as key from {schema}.job
            where state = 'available' and limit_key is null and fair is null and queue = wanted and job.type = asked.type
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
      end if;
      exit when came is null or is_fair and level is null;
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
        if is_fair then
          last_fair := came_fair[nth];
        end if;
        if came_key[nth] is null then
          if place is not null and held_options[place] is null then
            picked := picked || held_tid[place];
            picked_n := picked_n || came_n[nth];
            if level_is_fair then
              turn_level := turn_level || level;
              turn_fair := turn_fair || last_fair;
            end if;
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
          picked_n := picked_n || came_n[nth];
          if level_is_fair then
            turn_level := turn_level || level;
            turn_fair := turn_fair || last_fair;
          end if;
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
          if is_fair and stopped_by = any(going) then
            full_keys := full_keys || stopped_by;
            full_until := full_until || free_at;
            place := array_position(going, stopped_by);
            going := going[:place - 1] || going[place + 1:];
            reach := reach[:place - 1] || reach[place + 1:];
          end if;
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
      from taken as job
      order by case when is_fair then array_position(picked_n, job.n) end, job.priority desc, job.run_at, job.n;
    get diagnostics taken_now = row_count;
    left_over := left_over - taken_now;
    if cardinality(turn_level) > 0 then
      perform {schema}.end_turns(wanted || '/' || round || '/', turn_level, turn_fair, now_at);
    end if;

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

-- The types of which a queue has something available, as before; and those of jobs with fair keys.
create or replace function {schema}.ready_types(wanted text, most bigint) returns setof text language sql stable
set search_path = pg_catalog set enable_seqscan = off as $$
  with recursive kind (type) as (
    (select type from {schema}.job
     where state = 'available' and limit_key is null and fair is null and queue = wanted order by type limit 1)
    union all
    select (
      select job.type from {schema}.job
      where state = 'available' and limit_key is null and fair is null and queue = wanted and job.type > kind.type
      order by job.type limit 1
    )
    from kind where kind.type is not null
  ), fairly (type) as (
    (select type from {schema}.job where state = 'available' and fair is not null and queue = wanted order by type limit 1)
    union all
    select (
      select job.type from {schema}.job
      where state = 'available' and fair is not null and queue = wanted and job.type > fairly.type
      order by job.type limit 1
    )
    from fairly where fairly.type is not null
  )
  select type from (select type from kind union select type from fairly) as every_type where type is not null limit most
$$;

-- Claim, as before (see the second, fourth and fifth migration), while there is neither a key to look at nor a fair key.
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
    or exists (select 1 from {schema}.job where state = 'available' and fair is not null and queue = any(queues))
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
        where state = 'available' and limit_key is null and fair is null and queue = wanted and job.type = asked.type
          and priority > from_level
        order by priority desc, run_at, n limit 1
      )
    );
    loop
      if from_floor then
        kinds := array(
          select asked.type from unnest(known) as asked (type) where (
            select true from {schema}.job
            where state = 'available' and limit_key is null and fair is null and queue = wanted and job.type = asked.type
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
          if exists (select 1 from {schema}.recheck where queue = wanted and at <= now_at) or exists (
            select 1 from {schema}.job where state = 'available' and fair is not null and queue = wanted
          ) then
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
              where state = 'available' and limit_key is null and fair is null and queue = wanted and job.type = asked.type
              order by priority desc, run_at, n limit 1
            )
          );
        end if;
      end if;
      picked := '{}';
      if cardinality(kinds) = 1 and from_floor then
        picked := array(
          select job.ctid from {schema}.job
          where state = 'available' and limit_key is null and fair is null and queue = wanted and type = kinds[1]
            and priority = from_level and (run_at, n) >= (from_run_at, from_n) and run_at <= now_at
            and (expires_at is null or expires_at > now_at)
          order by run_at, n limit left_over for update skip locked
        );
      elsif cardinality(kinds) = 1 then
        picked := array(
          select job.ctid from {schema}.job
          where state = 'available' and limit_key is null and fair is null and queue = wanted and type = kinds[1] and run_at <= now_at
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
                where state = 'available' and limit_key is null and fair is null and queue = wanted and job.type = asked.type
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
                where state = 'available' and limit_key is null and fair is null and queue = wanted and job.type = asked.type
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
            where job.ctid = any(came) and state = 'available' and limit_key is null and fair is null and queue = wanted and type = any(kinds)
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
