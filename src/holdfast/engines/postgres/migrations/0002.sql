-- Claims go by type: a worker takes the types that it knows, and walks over no others on the way.
--
-- The lock is taken first: who can't get it in time has not built an index in vain, and tries again. From then on all who
-- use `job` wait until the index is there, about two seconds for a million jobs that have not ended.
lock table {schema}.job in access exclusive mode;
create index job_kind on {schema}.job (queue, type, priority desc, run_at, n) where state = 'available';
drop index {schema}.job_ready;

-- The types of which a queue has something available: from one type to the next, never from job to job.
create function {schema}.ready_types(wanted text, most bigint) returns setof text language sql stable
set search_path = pg_catalog set enable_seqscan = off as $$
  with recursive kind (type) as (
    (select type from {schema}.job where state = 'available' and queue = wanted order by type limit 1)
    union all
    select (
      select job.type from {schema}.job
      where state = 'available' and queue = wanted and job.type > kind.type order by job.type limit 1
    )
    from kind where kind.type is not null
  )
  select type from kind where type is not null limit most
$$;

-- Claim: what is due in these queues is promoted, whatever its type; then jobs of the known types are taken (of any, where
-- `known` is null), available → active, queue after queue, until there are `most`. Where something was promoted, a row with
-- nothing but the queue says so: who knows its type may wait for it.
--
-- In the middle of a long drain of the first queue it may begin where the last claim began (`from_level` and the next two,
-- see `floor.py`), so that what was claimed since, and can't be vacuumed yet, is not walked over again and again. Never by
-- a walk over the whole table: the planner would look so for a higher priority, which it believes many to have. The looks
-- for one job are ordered, so that no other index will do.
--
-- Mostly one of the known types is there, and its jobs are locked as they are read. Of several types each is read as far
-- as one of them could reach; what comes first is locked then, and what somebody else holds is passed over.
create function {schema}.claim(
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

-- For programs of the version before, which go on meanwhile: they take any type, and let rest what they don't know.
create or replace function {schema}.claim(
  claimer text, queues text[], most bigint, due_most bigint, from_level bigint, from_run_at bigint, from_n bigint)
returns setof {schema}.live language sql volatile set search_path = pg_catalog as $$
  select claim.* from {schema}.claim(claimer, queues, most, due_most, null::text[], from_level, from_run_at, from_n)
  where n is not null
$$;
