-- Steps are counted as they are recorded, by name and state, so that a status reads no steps.
--
-- A job's counters are right while its `summed` equals its `version`. Every program that counts raises both together; one of
-- the version before raises the version alone, and jobs made before have none: their steps are counted when they are asked
-- for, and once for all when the next step is recorded. So this takes a moment, however many jobs and steps there are.
alter table {schema}.job add column summed bigint;
alter table {schema}.done add column summed bigint;
alter table {schema}.job alter summed set statistics 0;

create table {schema}.summary (
  n bigint not null,
  name text collate "C" not null,          -- empty: the steps of all names beyond the first ones
  started bigint not null,
  done bigint not null,
  failed bigint not null,
  last bigint not null,                    -- the place of the step of this name that was first written last; 0: none is left
  path text not null,                      -- its path
  more text,                               -- what later versions keep for each name
  primary key (n, name)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0);

-- Claim, as before (see the second migration), but for `summed`.
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
  foreach wanted in array queues loop
    if exists (select 1 from {schema}.record where name = 'pause/' || wanted and value is not null) then
      continue;
    end if;
    from_floor := known is not null and from_level is not null and wanted = queues[1] and not exists (
      select 1 from unnest(known) as asked (type) where (
        select true from {schema}.job
        where state = 'available' and queue = wanted and job.type = asked.type and priority > from_level
        order by priority desc, run_at, n limit 1
      )
    );
    loop
      if from_floor then
        kinds := array(
          select asked.type from unnest(known) as asked (type) where (
            select true from {schema}.job
            where state = 'available' and queue = wanted and job.type = asked.type and priority = from_level
              and (run_at, n) >= (from_run_at, from_n)
            order by run_at, n limit 1
          )
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
            update {schema}.job set state = 'available', version = job.version + 1, summed = job.summed + 1, waits = null,
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
          if found then
            news.queue := wanted;
            return next news;
          end if;
        end if;
        if known is null then
          kinds := array(select {schema}.ready_types(wanted, null));
        else
          kinds := array(
            select asked.type from unnest(known) as asked (type) where (
              select true from {schema}.job
              where state = 'available' and queue = wanted and job.type = asked.type
              order by priority desc, run_at, n limit 1
            )
          );
        end if;
      end if;
      picked := '{}';
      if cardinality(kinds) = 1 and from_floor then
        picked := array(
          select job.ctid from {schema}.job
          where state = 'available' and queue = wanted and type = kinds[1] and priority = from_level
            and (run_at, n) >= (from_run_at, from_n) and run_at <= now_at
            and (expires_at is null or expires_at > now_at)
          order by run_at, n limit left_over for update skip locked
        );
      elsif cardinality(kinds) = 1 then
        picked := array(
          select job.ctid from {schema}.job
          where state = 'available' and queue = wanted and type = kinds[1] and run_at <= now_at
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
                where state = 'available' and queue = wanted and job.type = asked.type and priority = from_level
                  and (run_at, n) >= (from_run_at, from_n) and run_at <= now_at
                  and (expires_at is null or expires_at > now_at) and job.ctid <> all(tried)
                order by run_at, n limit left_over - cardinality(picked)
              ) as next
              order by next.run_at, next.n limit left_over - cardinality(picked)
            );
          else
            came := array(
              select next.ctid from unnest(kinds) as asked (type) cross join lateral (
                select job.ctid, priority, run_at, n from {schema}.job
                where state = 'available' and queue = wanted and job.type = asked.type and run_at <= now_at
                  and (expires_at is null or expires_at > now_at) and job.ctid <> all(tried)
                order by priority desc, run_at, n limit left_over - cardinality(picked)
              ) as next
              order by next.priority desc, next.run_at, next.n limit left_over - cardinality(picked)
            );
          end if;
          exit when cardinality(came) = 0;
          tried := tried || came;
          picked := picked || array(
            select job.ctid from {schema}.job
            where job.ctid = any(came) and state = 'available' and queue = wanted and type = any(kinds)
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

-- Prune, as before (see the first migration), and the counters go as well.
create or replace function {schema}.prune(most bigint, fold_at bigint) returns bigint
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
  ), summaries as (
    delete from {schema}.summary where summary.n = any(array(select n from gone))
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
