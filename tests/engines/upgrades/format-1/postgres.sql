CREATE SCHEMA holdfast_made;
CREATE FUNCTION holdfast_made.add_day(ahead bigint) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    SET lock_timeout TO '200ms'
    AS $_$
declare
  today bigint := "holdfast_made".now_ms() / 86400000;
  cold text;
  part text;
  day bigint;
  late boolean;
begin
  for day in select generate_series(today, today + ahead) loop  -- a loop over numbers would count in small ones
    foreach cold in array array['done', 'body', 'entry', 'step'] loop
      part := cold || '_' || day;
      if to_regclass(format('%s.%I', '"holdfast_made"', part)) is null then
        execute format('select exists (select 1 from %s.%I where n >= $1 and n < $2)', '"holdfast_made"', cold || '_rest')
          into late using day << 40, (day + 1) << 40;
        continue when late;
        execute format('create table %s.%I partition of %s.%I for values from (%s) to (%s)',
          '"holdfast_made"', part, '"holdfast_made"', cold, day << 40, (day + 1) << 40);
        return true;
      end if;
    end loop;
  end loop;
  return false;
end $_$;
CREATE TABLE holdfast_made.body (
    n bigint NOT NULL,
    args text NOT NULL
)
PARTITION BY RANGE (n);
CREATE TABLE holdfast_made.job (
    n bigint NOT NULL,
    id text NOT NULL COLLATE pg_catalog."C",
    type text NOT NULL,
    queue text NOT NULL,
    args text,
    digest text NOT NULL,
    priority bigint NOT NULL,
    key text,
    key_until bigint,
    parent text,
    family text,
    created_at bigint NOT NULL,
    expires_at bigint,
    options text NOT NULL,
    state text NOT NULL,
    version bigint NOT NULL,
    run_at bigint,
    epoch bigint NOT NULL,
    attempt bigint NOT NULL,
    recoveries bigint NOT NULL,
    worker text,
    claimed_at bigint,
    waits text,
    result text,
    error text,
    finished_at bigint,
    prune_at bigint,
    inbox text,
    arrived boolean NOT NULL,
    first_state text,
    first_epoch bigint NOT NULL,
    untold bigint,
    CONSTRAINT job_check CHECK (((state = 'active'::text) = (worker IS NOT NULL))),
    CONSTRAINT job_finished_at_check CHECK ((finished_at IS NULL)),
    CONSTRAINT job_state_check CHECK ((state = ANY (ARRAY['scheduled'::text, 'available'::text, 'pending'::text, 'active'::text, 'retryable'::text, 'review'::text])))
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_scale_factor='0.05');
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN n SET STATISTICS 10;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN id SET STATISTICS 0;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN type SET STATISTICS 0;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN queue SET STATISTICS 10;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN args SET STATISTICS 0;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN digest SET STATISTICS 0;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN priority SET STATISTICS 10;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN key SET STATISTICS 0;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN key_until SET STATISTICS 0;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN parent SET STATISTICS 10;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN family SET STATISTICS 0;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN created_at SET STATISTICS 0;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN expires_at SET STATISTICS 10;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN options SET STATISTICS 0;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN state SET STATISTICS 10;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN version SET STATISTICS 0;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN run_at SET STATISTICS 10;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN epoch SET STATISTICS 0;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN attempt SET STATISTICS 0;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN recoveries SET STATISTICS 0;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN worker SET STATISTICS 10;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN claimed_at SET STATISTICS 0;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN waits SET STATISTICS 0;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN result SET STATISTICS 0;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN error SET STATISTICS 0;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN finished_at SET STATISTICS 0;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN prune_at SET STATISTICS 0;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN inbox SET STATISTICS 0;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN arrived SET STATISTICS 0;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN first_state SET STATISTICS 0;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN first_epoch SET STATISTICS 0;
ALTER TABLE ONLY holdfast_made.job ALTER COLUMN untold SET STATISTICS 0;
CREATE VIEW holdfast_made.live AS
 SELECT job.n,
    job.id,
    job.type,
    job.queue,
    COALESCE(job.args, ( SELECT body.args
           FROM holdfast_made.body
          WHERE (body.n = job.n))) AS args,
    job.digest,
    job.priority,
    job.key,
    job.key_until,
    job.parent,
    job.family,
    job.created_at,
    job.expires_at,
    job.options,
    job.state,
    job.version,
    job.run_at,
    job.epoch,
    job.attempt,
    job.recoveries,
    job.worker,
    job.claimed_at,
    job.waits,
    job.result,
    job.error,
    job.finished_at,
    job.prune_at,
    job.inbox,
    job.arrived
   FROM holdfast_made.job;
CREATE FUNCTION holdfast_made.claim(claimer text, queues text[], most bigint, due_most bigint, from_level bigint, from_run_at bigint, from_n bigint) RETURNS SETOF holdfast_made.live
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    AS $$
declare
  now_at bigint := "holdfast_made".now_ms();
  wanted text;
  left_over bigint := most;
  picked tid[];  -- we hold these rows, so they stay where they are
  taken_now bigint;
  from_floor boolean;
begin
  foreach wanted in array queues loop
    if exists (select 1 from "holdfast_made".record where name = 'pause/' || wanted and value is not null) then
      continue;
    end if;
    from_floor := from_level is not null and wanted = queues[1] and not exists (
      select 1 from "holdfast_made".job where state = 'available' and queue = wanted and priority > from_level
    );
    loop
      if from_floor then
        picked := array(
          select job.ctid from "holdfast_made".job
          where state = 'available' and queue = wanted and priority = from_level
            and (run_at, n) >= (from_run_at, from_n) and run_at <= now_at
            and (expires_at is null or expires_at > now_at)
          order by run_at, n limit left_over for update skip locked
        );
      else
        -- promote: scheduled, retryable → available; activate: pending → available
        if exists (
          select 1 from "holdfast_made".job
          where state in ('scheduled', 'retryable', 'pending') and queue = wanted and run_at <= now_at
        ) then
          with due as (
            select job.n, job.state as before from "holdfast_made".job
            where state in ('scheduled', 'retryable', 'pending') and queue = wanted and run_at <= now_at
              and (expires_at is null or expires_at > now_at)
            order by run_at, n limit due_most for update skip locked
          ), moved as (
            update "holdfast_made".job set state = 'available', version = job.version + 1, waits = null,
              run_at = case when due.before = 'pending' then now_at else job.run_at end
            from due where job.n = due.n
            returning job.n, job.version, job.epoch, due.before
          ), told as (
            insert into "holdfast_made".entry (n, version, at, event, before, after, actor, epoch, note)
            select n, version, now_at, case when before = 'pending' then 'activate' else 'promote' end, before,
              'available', 'time', epoch, null
            from moved
          )
          insert into "holdfast_made".tally (queue, state, jobs)
          select wanted, before, -count(*) from moved group by before
          union all
          select wanted, 'available', count(*) from moved having count(*) > 0;
        end if;
        picked := array(
          select job.ctid from "holdfast_made".job
          where state = 'available' and queue = wanted and run_at <= now_at
            and (expires_at is null or expires_at > now_at)
          order by priority desc, run_at, n limit left_over for update skip locked
        );
      end if;
      return query
        with taken as (
          update "holdfast_made".job set state = 'active', version = job.version + 1, epoch = job.epoch + 1,
            worker = claimer, claimed_at = now_at, untold = job.version + 1
          where job.ctid = any(picked)
          returning job.*
        ), counted as (
          insert into "holdfast_made".tally (queue, state, jobs)
          select wanted, 'available', -count(*) from taken having count(*) > 0
          union all
          select wanted, 'active', count(*) from taken having count(*) > 0
        )
        select job.n, job.id, job.type, job.queue,
          coalesce(job.args, (select body.args from "holdfast_made".body where body.n = job.n)), job.digest,
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
CREATE FUNCTION holdfast_made.drop_day() RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    SET lock_timeout TO '200ms'
    AS $_$
declare
  today bigint := "holdfast_made".now_ms() / 86400000;
  day bigint;
  cold text;
  kept boolean;
begin
  for day in
    select substring(relname from '^done_([0-9]+)$')::bigint from pg_class
    where relnamespace = to_regnamespace('"holdfast_made"') and relname ~ '^done_[0-9]+$'
  loop
    -- A transaction that began before midnight may still write into yesterday.
    continue when day >= today - 1;
    continue when exists (select 1 from "holdfast_made".job where n >= day << 40 and n < (day + 1) << 40);
    execute format('select exists (select 1 from %s.%I)', '"holdfast_made"', 'done_' || day) into kept;
    continue when kept;
    foreach cold in array array['step', 'entry', 'body', 'done'] loop  -- `done` last: by it a day is found
      if to_regclass(format('%s.%I', '"holdfast_made"', cold || '_' || day)) is not null then
        execute format('drop table %s.%I', '"holdfast_made"', cold || '_' || day);
        return true;
      end if;
    end loop;
  end loop;
  return false;
end $_$;
CREATE FUNCTION holdfast_made.expired(until bigint) RETURNS SETOF bigint
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
  select n from "holdfast_made".job where expires_at <= until
$$;
CREATE FUNCTION holdfast_made.now_ms() RETURNS bigint
    LANGUAGE sql
    AS $$ select pg_catalog.floor(extract(epoch from pg_catalog.clock_timestamp()) operator(pg_catalog.*) 1000)::bigint $$;
CREATE FUNCTION holdfast_made.once(given anyarray) RETURNS anyelement
    LANGUAGE sql IMMUTABLE
    AS $$ select case when pg_catalog.cardinality(given) operator(pg_catalog.=) 1 then given[1] end $$;
CREATE FUNCTION holdfast_made.prune(most bigint, fold_at bigint) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $$
declare
  now_at bigint := "holdfast_made".now_ms();
  pruned bigint;
begin
  with old as materialized (
    select done.n from "holdfast_made".done
    where done.prune_at <= now_at
      and not exists (select 1 from "holdfast_made".job as child where child.parent = done.id offset 0)
      and not exists (select 1 from "holdfast_made".name join "holdfast_made".job using (n) where name.id = done.parent offset 0)
    order by done.prune_at, done.n limit most
    for update skip locked
  ), gone as (
    delete from "holdfast_made".done using old where done.n = old.n
    returning done.n, done.id, done.queue, done.state, done.type, done.key
  ), names as (
    delete from "holdfast_made".name using gone where name.id = gone.id
  ), keys as (
    delete from "holdfast_made".key using gone
    where key.type = gone.type and key.key = gone.key and key.job = gone.id
      and (key.until is null or key.until <= now_at)
  ), families as (
    delete from "holdfast_made".family using gone where family.parent = gone.id
  ), bodies as (
    delete from "holdfast_made".body_rest using gone where body_rest.n = gone.n
  ), entries as (
    delete from "holdfast_made".entry_rest using gone where entry_rest.n = gone.n
  ), steps as (
    delete from "holdfast_made".step_rest using gone where step_rest.n = gone.n
  ), counted as (
    insert into "holdfast_made".tally (queue, state, jobs)
    select queue, state, -count(*) from gone group by queue, state
  )
  select count(*) into pruned from gone;
  delete from "holdfast_made".key where until <= now_at;
  if (select count(*) from (select 1 from "holdfast_made".tally limit fold_at) as few) >= fold_at then
    -- Rows that another one sums up just now are left to it.
    with few as (
      select ctid from "holdfast_made".tally limit 100000 for update skip locked
    ), folded as (
      delete from "holdfast_made".tally where ctid = any(array(select ctid from few)) returning queue, state, jobs
    )
    insert into "holdfast_made".tally (queue, state, jobs)
    select queue, state, sum(jobs) from folded group by queue, state having sum(jobs) <> 0;
  end if;
  return pruned;
end $$;
CREATE TABLE holdfast_made.body_20775 (
    n bigint NOT NULL,
    args text NOT NULL
);
CREATE TABLE holdfast_made.body_20776 (
    n bigint NOT NULL,
    args text NOT NULL
);
CREATE TABLE holdfast_made.body_20777 (
    n bigint NOT NULL,
    args text NOT NULL
);
CREATE TABLE holdfast_made.body_20778 (
    n bigint NOT NULL,
    args text NOT NULL
);
CREATE TABLE holdfast_made.body_rest (
    n bigint NOT NULL,
    args text NOT NULL
);
CREATE TABLE holdfast_made.done (
    n bigint NOT NULL,
    id text NOT NULL COLLATE pg_catalog."C",
    type text NOT NULL,
    queue text NOT NULL,
    args text,
    digest text NOT NULL,
    priority bigint NOT NULL,
    key text,
    key_until bigint,
    parent text,
    family text,
    created_at bigint NOT NULL,
    expires_at bigint,
    options text NOT NULL,
    state text NOT NULL,
    version bigint NOT NULL,
    run_at bigint,
    epoch bigint NOT NULL,
    attempt bigint NOT NULL,
    recoveries bigint NOT NULL,
    worker text,
    claimed_at bigint,
    waits text,
    result text,
    error text,
    finished_at bigint,
    prune_at bigint,
    inbox text,
    arrived boolean NOT NULL,
    first_state text,
    first_epoch bigint NOT NULL,
    told_claim bigint,
    told_at bigint,
    told_by text,
    CONSTRAINT done_state_check CHECK ((state = ANY (ARRAY['completed'::text, 'discarded'::text, 'cancelled'::text]))),
    CONSTRAINT done_worker_check CHECK ((worker IS NULL))
)
PARTITION BY RANGE (n);
CREATE TABLE holdfast_made.done_20775 (
    n bigint NOT NULL,
    id text NOT NULL COLLATE pg_catalog."C",
    type text NOT NULL,
    queue text NOT NULL,
    args text,
    digest text NOT NULL,
    priority bigint NOT NULL,
    key text,
    key_until bigint,
    parent text,
    family text,
    created_at bigint NOT NULL,
    expires_at bigint,
    options text NOT NULL,
    state text NOT NULL,
    version bigint NOT NULL,
    run_at bigint,
    epoch bigint NOT NULL,
    attempt bigint NOT NULL,
    recoveries bigint NOT NULL,
    worker text,
    claimed_at bigint,
    waits text,
    result text,
    error text,
    finished_at bigint,
    prune_at bigint,
    inbox text,
    arrived boolean NOT NULL,
    first_state text,
    first_epoch bigint NOT NULL,
    told_claim bigint,
    told_at bigint,
    told_by text,
    CONSTRAINT done_state_check CHECK ((state = ANY (ARRAY['completed'::text, 'discarded'::text, 'cancelled'::text]))),
    CONSTRAINT done_worker_check CHECK ((worker IS NULL))
);
CREATE TABLE holdfast_made.done_20776 (
    n bigint NOT NULL,
    id text NOT NULL COLLATE pg_catalog."C",
    type text NOT NULL,
    queue text NOT NULL,
    args text,
    digest text NOT NULL,
    priority bigint NOT NULL,
    key text,
    key_until bigint,
    parent text,
    family text,
    created_at bigint NOT NULL,
    expires_at bigint,
    options text NOT NULL,
    state text NOT NULL,
    version bigint NOT NULL,
    run_at bigint,
    epoch bigint NOT NULL,
    attempt bigint NOT NULL,
    recoveries bigint NOT NULL,
    worker text,
    claimed_at bigint,
    waits text,
    result text,
    error text,
    finished_at bigint,
    prune_at bigint,
    inbox text,
    arrived boolean NOT NULL,
    first_state text,
    first_epoch bigint NOT NULL,
    told_claim bigint,
    told_at bigint,
    told_by text,
    CONSTRAINT done_state_check CHECK ((state = ANY (ARRAY['completed'::text, 'discarded'::text, 'cancelled'::text]))),
    CONSTRAINT done_worker_check CHECK ((worker IS NULL))
);
CREATE TABLE holdfast_made.done_20777 (
    n bigint NOT NULL,
    id text NOT NULL COLLATE pg_catalog."C",
    type text NOT NULL,
    queue text NOT NULL,
    args text,
    digest text NOT NULL,
    priority bigint NOT NULL,
    key text,
    key_until bigint,
    parent text,
    family text,
    created_at bigint NOT NULL,
    expires_at bigint,
    options text NOT NULL,
    state text NOT NULL,
    version bigint NOT NULL,
    run_at bigint,
    epoch bigint NOT NULL,
    attempt bigint NOT NULL,
    recoveries bigint NOT NULL,
    worker text,
    claimed_at bigint,
    waits text,
    result text,
    error text,
    finished_at bigint,
    prune_at bigint,
    inbox text,
    arrived boolean NOT NULL,
    first_state text,
    first_epoch bigint NOT NULL,
    told_claim bigint,
    told_at bigint,
    told_by text,
    CONSTRAINT done_state_check CHECK ((state = ANY (ARRAY['completed'::text, 'discarded'::text, 'cancelled'::text]))),
    CONSTRAINT done_worker_check CHECK ((worker IS NULL))
);
CREATE TABLE holdfast_made.done_20778 (
    n bigint NOT NULL,
    id text NOT NULL COLLATE pg_catalog."C",
    type text NOT NULL,
    queue text NOT NULL,
    args text,
    digest text NOT NULL,
    priority bigint NOT NULL,
    key text,
    key_until bigint,
    parent text,
    family text,
    created_at bigint NOT NULL,
    expires_at bigint,
    options text NOT NULL,
    state text NOT NULL,
    version bigint NOT NULL,
    run_at bigint,
    epoch bigint NOT NULL,
    attempt bigint NOT NULL,
    recoveries bigint NOT NULL,
    worker text,
    claimed_at bigint,
    waits text,
    result text,
    error text,
    finished_at bigint,
    prune_at bigint,
    inbox text,
    arrived boolean NOT NULL,
    first_state text,
    first_epoch bigint NOT NULL,
    told_claim bigint,
    told_at bigint,
    told_by text,
    CONSTRAINT done_state_check CHECK ((state = ANY (ARRAY['completed'::text, 'discarded'::text, 'cancelled'::text]))),
    CONSTRAINT done_worker_check CHECK ((worker IS NULL))
);
CREATE TABLE holdfast_made.done_rest (
    n bigint NOT NULL,
    id text NOT NULL COLLATE pg_catalog."C",
    type text NOT NULL,
    queue text NOT NULL,
    args text,
    digest text NOT NULL,
    priority bigint NOT NULL,
    key text,
    key_until bigint,
    parent text,
    family text,
    created_at bigint NOT NULL,
    expires_at bigint,
    options text NOT NULL,
    state text NOT NULL,
    version bigint NOT NULL,
    run_at bigint,
    epoch bigint NOT NULL,
    attempt bigint NOT NULL,
    recoveries bigint NOT NULL,
    worker text,
    claimed_at bigint,
    waits text,
    result text,
    error text,
    finished_at bigint,
    prune_at bigint,
    inbox text,
    arrived boolean NOT NULL,
    first_state text,
    first_epoch bigint NOT NULL,
    told_claim bigint,
    told_at bigint,
    told_by text,
    CONSTRAINT done_state_check CHECK ((state = ANY (ARRAY['completed'::text, 'discarded'::text, 'cancelled'::text]))),
    CONSTRAINT done_worker_check CHECK ((worker IS NULL))
);
CREATE VIEW holdfast_made.ended AS
 SELECT done.n,
    done.id,
    done.type,
    done.queue,
    COALESCE(done.args, ( SELECT body.args
           FROM holdfast_made.body
          WHERE (body.n = done.n))) AS args,
    done.digest,
    done.priority,
    done.key,
    done.key_until,
    done.parent,
    done.family,
    done.created_at,
    done.expires_at,
    done.options,
    done.state,
    done.version,
    done.run_at,
    done.epoch,
    done.attempt,
    done.recoveries,
    done.worker,
    done.claimed_at,
    done.waits,
    done.result,
    done.error,
    done.finished_at,
    done.prune_at,
    done.inbox,
    done.arrived
   FROM holdfast_made.done;
CREATE TABLE holdfast_made.entry (
    n bigint NOT NULL,
    version bigint NOT NULL,
    at bigint NOT NULL,
    event text NOT NULL,
    before text,
    after text NOT NULL,
    actor text NOT NULL,
    epoch bigint NOT NULL,
    note text
)
PARTITION BY RANGE (n);
CREATE TABLE holdfast_made.entry_20775 (
    n bigint NOT NULL,
    version bigint NOT NULL,
    at bigint NOT NULL,
    event text NOT NULL,
    before text,
    after text NOT NULL,
    actor text NOT NULL,
    epoch bigint NOT NULL,
    note text
);
CREATE TABLE holdfast_made.entry_20776 (
    n bigint NOT NULL,
    version bigint NOT NULL,
    at bigint NOT NULL,
    event text NOT NULL,
    before text,
    after text NOT NULL,
    actor text NOT NULL,
    epoch bigint NOT NULL,
    note text
);
CREATE TABLE holdfast_made.entry_20777 (
    n bigint NOT NULL,
    version bigint NOT NULL,
    at bigint NOT NULL,
    event text NOT NULL,
    before text,
    after text NOT NULL,
    actor text NOT NULL,
    epoch bigint NOT NULL,
    note text
);
CREATE TABLE holdfast_made.entry_20778 (
    n bigint NOT NULL,
    version bigint NOT NULL,
    at bigint NOT NULL,
    event text NOT NULL,
    before text,
    after text NOT NULL,
    actor text NOT NULL,
    epoch bigint NOT NULL,
    note text
);
CREATE TABLE holdfast_made.entry_rest (
    n bigint NOT NULL,
    version bigint NOT NULL,
    at bigint NOT NULL,
    event text NOT NULL,
    before text,
    after text NOT NULL,
    actor text NOT NULL,
    epoch bigint NOT NULL,
    note text
);
CREATE TABLE holdfast_made.family (
    parent text NOT NULL,
    name text NOT NULL,
    total bigint NOT NULL,
    arrived bigint NOT NULL
)
WITH (fillfactor='50');
CREATE TABLE holdfast_made.name (
    id text NOT NULL COLLATE pg_catalog."C",
    n bigint NOT NULL
);
ALTER TABLE ONLY holdfast_made.name ALTER COLUMN id SET STATISTICS 10;
ALTER TABLE ONLY holdfast_made.name ALTER COLUMN n SET STATISTICS 10;
CREATE VIEW holdfast_made.told AS
 SELECT entry.n,
    entry.version,
    entry.at,
    entry.event,
    entry.before,
    entry.after,
    entry.actor,
    entry.epoch,
    entry.note
   FROM holdfast_made.entry
UNION ALL
 SELECT job.n,
    1 AS version,
    job.created_at AS at,
    'submit'::text AS event,
    NULL::text AS before,
    job.first_state AS after,
    COALESCE(job.parent, ''::text) AS actor,
    job.first_epoch AS epoch,
    NULL::text AS note
   FROM holdfast_made.job
  WHERE (job.first_state IS NOT NULL)
UNION ALL
 SELECT done.n,
    1 AS version,
    done.created_at AS at,
    'submit'::text AS event,
    NULL::text AS before,
    done.first_state AS after,
    COALESCE(done.parent, ''::text) AS actor,
    done.first_epoch AS epoch,
    NULL::text AS note
   FROM holdfast_made.done
  WHERE (done.first_state IS NOT NULL)
UNION ALL
 SELECT job.n,
    job.untold AS version,
    job.claimed_at AS at,
    'claim'::text AS event,
    'available'::text AS before,
    'active'::text AS after,
    job.worker AS actor,
    job.epoch,
    NULL::text AS note
   FROM holdfast_made.job
  WHERE (job.untold IS NOT NULL)
UNION ALL
 SELECT done.n,
    done.told_claim AS version,
    done.told_at AS at,
    'claim'::text AS event,
    'available'::text AS before,
    'active'::text AS after,
    done.told_by AS actor,
    done.epoch,
    NULL::text AS note
   FROM holdfast_made.done
  WHERE (done.told_claim IS NOT NULL)
UNION ALL
 SELECT done.n,
    done.version,
    done.finished_at AS at,
    'complete'::text AS event,
    'active'::text AS before,
    done.state AS after,
    done.told_by AS actor,
    done.epoch,
    NULL::text AS note
   FROM holdfast_made.done
  WHERE (done.told_claim IS NOT NULL);
CREATE VIEW holdfast_made.history AS
 SELECT name.id,
    told.version,
    to_timestamp((((told.at)::numeric / 1000.0))::double precision) AS at,
    told.event,
    told.before,
    told.after,
    told.actor,
    told.note
   FROM (holdfast_made.told
     JOIN holdfast_made.name USING (n));
CREATE SEQUENCE holdfast_made.job_n
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
CREATE VIEW holdfast_made.jobs AS
 SELECT live.id,
    live.type,
    live.queue,
    live.state,
    live.attempt,
    to_timestamp((((live.run_at)::numeric / 1000.0))::double precision) AS run_at,
    live.worker,
    live.args,
    live.error,
    live.result
   FROM holdfast_made.live
UNION ALL
 SELECT ended.id,
    ended.type,
    ended.queue,
    ended.state,
    ended.attempt,
    to_timestamp((((ended.run_at)::numeric / 1000.0))::double precision) AS run_at,
    ended.worker,
    ended.args,
    ended.error,
    ended.result
   FROM holdfast_made.ended;
CREATE TABLE holdfast_made.key (
    type text NOT NULL,
    key text NOT NULL,
    job text NOT NULL,
    digest text NOT NULL,
    until bigint,
    created_at bigint NOT NULL
);
CREATE TABLE holdfast_made.record (
    name text NOT NULL COLLATE pg_catalog."C",
    value text,
    version bigint NOT NULL,
    at bigint NOT NULL
)
WITH (fillfactor='50');
CREATE TABLE holdfast_made.step (
    n bigint NOT NULL,
    path text NOT NULL COLLATE pg_catalog."C",
    place bigint NOT NULL,
    name text NOT NULL,
    state text NOT NULL,
    epoch bigint NOT NULL,
    started_at bigint NOT NULL,
    finished_at bigint,
    error text,
    result text,
    CONSTRAINT step_state_check CHECK ((state = ANY (ARRAY['started'::text, 'done'::text, 'failed'::text])))
)
PARTITION BY RANGE (n);
CREATE TABLE holdfast_made.step_20775 (
    n bigint NOT NULL,
    path text NOT NULL COLLATE pg_catalog."C",
    place bigint NOT NULL,
    name text NOT NULL,
    state text NOT NULL,
    epoch bigint NOT NULL,
    started_at bigint NOT NULL,
    finished_at bigint,
    error text,
    result text,
    CONSTRAINT step_state_check CHECK ((state = ANY (ARRAY['started'::text, 'done'::text, 'failed'::text])))
);
CREATE TABLE holdfast_made.step_20776 (
    n bigint NOT NULL,
    path text NOT NULL COLLATE pg_catalog."C",
    place bigint NOT NULL,
    name text NOT NULL,
    state text NOT NULL,
    epoch bigint NOT NULL,
    started_at bigint NOT NULL,
    finished_at bigint,
    error text,
    result text,
    CONSTRAINT step_state_check CHECK ((state = ANY (ARRAY['started'::text, 'done'::text, 'failed'::text])))
);
CREATE TABLE holdfast_made.step_20777 (
    n bigint NOT NULL,
    path text NOT NULL COLLATE pg_catalog."C",
    place bigint NOT NULL,
    name text NOT NULL,
    state text NOT NULL,
    epoch bigint NOT NULL,
    started_at bigint NOT NULL,
    finished_at bigint,
    error text,
    result text,
    CONSTRAINT step_state_check CHECK ((state = ANY (ARRAY['started'::text, 'done'::text, 'failed'::text])))
);
CREATE TABLE holdfast_made.step_20778 (
    n bigint NOT NULL,
    path text NOT NULL COLLATE pg_catalog."C",
    place bigint NOT NULL,
    name text NOT NULL,
    state text NOT NULL,
    epoch bigint NOT NULL,
    started_at bigint NOT NULL,
    finished_at bigint,
    error text,
    result text,
    CONSTRAINT step_state_check CHECK ((state = ANY (ARRAY['started'::text, 'done'::text, 'failed'::text])))
);
CREATE SEQUENCE holdfast_made.step_place
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
CREATE TABLE holdfast_made.step_rest (
    n bigint NOT NULL,
    path text NOT NULL COLLATE pg_catalog."C",
    place bigint NOT NULL,
    name text NOT NULL,
    state text NOT NULL,
    epoch bigint NOT NULL,
    started_at bigint NOT NULL,
    finished_at bigint,
    error text,
    result text,
    CONSTRAINT step_state_check CHECK ((state = ANY (ARRAY['started'::text, 'done'::text, 'failed'::text])))
);
CREATE TABLE holdfast_made.store (
    one boolean DEFAULT true NOT NULL,
    version integer NOT NULL,
    oldest integer NOT NULL,
    CONSTRAINT store_one_check CHECK (one)
);
CREATE TABLE holdfast_made.tally (
    queue text NOT NULL,
    state text NOT NULL,
    jobs bigint NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0');
CREATE TABLE holdfast_made.worker (
    name text NOT NULL COLLATE pg_catalog."C",
    presence text NOT NULL,
    beat_at bigint NOT NULL,
    beat_ms bigint NOT NULL,
    lease_ms bigint NOT NULL,
    lock bigint
)
WITH (fillfactor='50');
ALTER TABLE ONLY holdfast_made.body ATTACH PARTITION holdfast_made.body_20775 FOR VALUES FROM ('22842354067046400') TO ('22843453578674176');
ALTER TABLE ONLY holdfast_made.body ATTACH PARTITION holdfast_made.body_20776 FOR VALUES FROM ('22843453578674176') TO ('22844553090301952');
ALTER TABLE ONLY holdfast_made.body ATTACH PARTITION holdfast_made.body_20777 FOR VALUES FROM ('22844553090301952') TO ('22845652601929728');
ALTER TABLE ONLY holdfast_made.body ATTACH PARTITION holdfast_made.body_20778 FOR VALUES FROM ('22845652601929728') TO ('22846752113557504');
ALTER TABLE ONLY holdfast_made.body ATTACH PARTITION holdfast_made.body_rest DEFAULT;
ALTER TABLE ONLY holdfast_made.done ATTACH PARTITION holdfast_made.done_20775 FOR VALUES FROM ('22842354067046400') TO ('22843453578674176');
ALTER TABLE ONLY holdfast_made.done ATTACH PARTITION holdfast_made.done_20776 FOR VALUES FROM ('22843453578674176') TO ('22844553090301952');
ALTER TABLE ONLY holdfast_made.done ATTACH PARTITION holdfast_made.done_20777 FOR VALUES FROM ('22844553090301952') TO ('22845652601929728');
ALTER TABLE ONLY holdfast_made.done ATTACH PARTITION holdfast_made.done_20778 FOR VALUES FROM ('22845652601929728') TO ('22846752113557504');
ALTER TABLE ONLY holdfast_made.done ATTACH PARTITION holdfast_made.done_rest DEFAULT;
ALTER TABLE ONLY holdfast_made.entry ATTACH PARTITION holdfast_made.entry_20775 FOR VALUES FROM ('22842354067046400') TO ('22843453578674176');
ALTER TABLE ONLY holdfast_made.entry ATTACH PARTITION holdfast_made.entry_20776 FOR VALUES FROM ('22843453578674176') TO ('22844553090301952');
ALTER TABLE ONLY holdfast_made.entry ATTACH PARTITION holdfast_made.entry_20777 FOR VALUES FROM ('22844553090301952') TO ('22845652601929728');
ALTER TABLE ONLY holdfast_made.entry ATTACH PARTITION holdfast_made.entry_20778 FOR VALUES FROM ('22845652601929728') TO ('22846752113557504');
ALTER TABLE ONLY holdfast_made.entry ATTACH PARTITION holdfast_made.entry_rest DEFAULT;
ALTER TABLE ONLY holdfast_made.step ATTACH PARTITION holdfast_made.step_20775 FOR VALUES FROM ('22842354067046400') TO ('22843453578674176');
ALTER TABLE ONLY holdfast_made.step ATTACH PARTITION holdfast_made.step_20776 FOR VALUES FROM ('22843453578674176') TO ('22844553090301952');
ALTER TABLE ONLY holdfast_made.step ATTACH PARTITION holdfast_made.step_20777 FOR VALUES FROM ('22844553090301952') TO ('22845652601929728');
ALTER TABLE ONLY holdfast_made.step ATTACH PARTITION holdfast_made.step_20778 FOR VALUES FROM ('22845652601929728') TO ('22846752113557504');
ALTER TABLE ONLY holdfast_made.step ATTACH PARTITION holdfast_made.step_rest DEFAULT;
INSERT INTO holdfast_made.done_20775 VALUES (22842354067046401, '01a1ecda-b990-7603-a3ed-5c0675daac30', 'upgrades.plain', 'default', '[1]', '89366b6ad129e12bc7bf4978b5607c30', 0, 'k-1', NULL, NULL, NULL, 1794975119760, NULL, '{"retry":{},"keep_ms":3456000000000}', 'completed', 3, 1794975119760, 1, 1, 0, NULL, NULL, NULL, '2', NULL, 1794975119917, 5250975119917, NULL, false, 'available', 0, 2, 1794975119894, 'w-first');
INSERT INTO holdfast_made.done_20775 VALUES (22842354067046424, '01a1ecda-b9db-711d-a797-3c4b893cf24d', 'upgrades.broken', 'default', '[3]', '2b98d7af48e2f289be593dae68054971', 0, NULL, NULL, NULL, NULL, 1794975119835, NULL, '{"retry":{"retries":0},"keep_ms":3456000000000}', 'discarded', 4, 1794975119835, 1, 2, 0, NULL, NULL, NULL, NULL, '{"type":"ValueError","message":"broken then","traceback":"Traceback (most recent call last):\n  File \"/tmp/tmpxo8sqkyx/code/holdfast/worker/handler.py\", line 23, in guarded\n    return await work(attempt), None\n           ^^^^^^^^^^^^^^^^^^^\n  File \"/tmp/tmpxo8sqkyx/code/holdfast/worker/handler.py\", line 35, in handled\n    value = await spec.function(*args, **kwargs)\n            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/tmp/tmpxo8sqkyx/code/tests/engines/upgrades/jobs.py\", line 125, in broken\n    raise ValueError(\"broken then\")\nValueError: broken then\n"}', 1794975122573, 5250975122573, NULL, false, 'available', 0, NULL, NULL, NULL);
INSERT INTO holdfast_made.done_20775 VALUES (22842354067046411, '01a1ecda-b9c9-7762-9f8b-87354d14e9ee', 'upgrades.painter', 'default', '[]', 'e03df04acbc27b762e7ecbc217c1ffda', 0, NULL, NULL, NULL, NULL, 1794975119817, NULL, '{"retry":{},"keep_ms":3456000000000}', 'cancelled', 4, NULL, 1, 1, 0, NULL, NULL, NULL, NULL, NULL, 1794975122576, 5250975122576, NULL, false, 'available', 0, NULL, NULL, NULL);
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046409, 2, 1794975119894, 'claim', 'available', 'active', 'w-first', 1, NULL);
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046409, 3, 1794975119917, 'fail', 'active', 'retryable', 'w-first', 1, '{"error":"ValueError: not then","attempt":1,"next_try":"in 3 min 8 s"}');
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046407, 2, 1794975119894, 'claim', 'available', 'active', 'w-first', 1, NULL);
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046407, 3, 1794975120000, 'suspend', 'active', 'pending', 'w-first', 1, '{"waits":["signal go"]}');
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046408, 2, 1794975119894, 'claim', 'available', 'active', 'w-first', 1, NULL);
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046408, 3, 1794975120000, 'rest', 'active', 'scheduled', 'w-first', 1, '{"waits":["time, for 1 h at most"]}');
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046406, 2, 1794975119894, 'claim', 'available', 'active', 'w-first', 1, NULL);
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046406, 3, 1794975120062, 'suspend', 'active', 'pending', 'w-first', 1, '{"waits":["children ~map:upgrades.child#1"]}');
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046411, 2, 1794975119923, 'claim', 'available', 'active', 'w-first', 1, NULL);
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046411, 3, 1794975120099, 'suspend', 'active', 'pending', 'w-first', 1, '{"waits":["signal never"]}');
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046422, 2, 1794975120135, 'claim', 'available', 'active', 'w-first', 1, NULL);
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046423, 2, 1794975120135, 'claim', 'available', 'active', 'w-first', 1, NULL);
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046424, 2, 1794975120135, 'claim', 'available', 'active', 'w-first', 1, NULL);
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046422, 3, 1794975120158, 'exhaust', 'active', 'review', 'w-first', 1, '{"error":"ValueError: broken then","attempt":1}');
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046423, 3, 1794975120158, 'exhaust', 'active', 'review', 'w-first', 1, '{"error":"ValueError: broken then","attempt":1}');
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046424, 3, 1794975120158, 'exhaust', 'active', 'review', 'w-first', 1, '{"error":"ValueError: broken then","attempt":1}');
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046412, 2, 1794975119923, 'claim', 'available', 'active', 'w-first', 1, NULL);
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046412, 3, 1794975120234, 'suspend', 'active', 'pending', 'w-first', 1, '{"waits":["signal go"]}');
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046413, 2, 1794975119923, 'claim', 'available', 'active', 'w-first', 1, NULL);
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046413, 3, 1794975120249, 'suspend', 'active', 'pending', 'w-first', 1, '{"waits":["signal go"]}');
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046415, 2, 1794975119923, 'claim', 'available', 'active', 'w-first', 1, NULL);
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046415, 3, 1794975121492, 'suspend', 'active', 'pending', 'w-first', 1, '{"waits":["children 01a1ecda-b9d4-778d-9b85-5e9475c6878d","children 01a1ecda-b9d4-7b61-aff1-d65ea974e31a","children 01a1ecda-b9d4-753c-ad66-9c7c85a641e8","children 01a1ecda-b9d4-7d74-922a-1fc186fe9c53","children ~map:upgrades.given#1","children 01a1ecda-b9d4-7c43-995b-ee2dc2dbef3b","children 01a1ecda-b9d4-7f36-87bb-e2e77832031c"]}');
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046405, 2, 1794975119894, 'claim', 'available', 'active', 'w-first', 1, NULL);
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046405, 3, 1794975122416, 'lapse', 'active', 'available', 'w-second', 1, '{"lost":"w-first","why":"process 1722 on vm ended without a word; last heard of 1 s ago","survived":"1 recorded steps","stage":"draw"}');
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046410, 2, 1794975119923, 'claim', 'available', 'active', 'w-first', 1, NULL);
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046410, 3, 1794975122416, 'abandon', 'active', 'review', 'w-second', 1, '{"lost":"w-first","why":"process 1722 on vm ended without a word; last heard of 1 s ago","survived":"1 recorded steps","stage":"pay","in_doubt":["pay#payment 1"]}');
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046414, 2, 1794975119923, 'claim', 'available', 'active', 'w-first', 1, NULL);
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046414, 3, 1794975122416, 'lapse', 'active', 'available', 'w-second', 1, '{"lost":"w-first","why":"process 1722 on vm ended without a word; last heard of 1 s ago","survived":"7 recorded steps","stage":"took_apart"}');
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046414, 4, 1794975122498, 'claim', 'available', 'active', 'w-second', 2, NULL);
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046414, 5, 1794975122502, 'suspend', 'active', 'pending', 'w-second', 2, '{"waits":["signal go"]}');
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046407, 4, 1794975122570, 'signal', 'pending', 'pending', 'caller', 1, '{"signal":"other"}');
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046424, 4, 1794975122573, 'discard', 'review', 'discarded', 'making', 1, '{"reason":"too broken"}');
INSERT INTO holdfast_made.entry_20775 VALUES (22842354067046411, 4, 1794975122576, 'cancel', 'pending', 'cancelled', 'making', 1, NULL);
INSERT INTO holdfast_made.family VALUES ('01a1ecda-b9d4-76f9-a165-852804a7b778', '01a1ecda-b9d4-7f36-87bb-e2e77832031c', 1, 0);
INSERT INTO holdfast_made.family VALUES ('01a1ecda-b9c6-73ab-8ca3-d9e09266f2be', '~map:upgrades.child#1', 3, 0);
INSERT INTO holdfast_made.family VALUES ('01a1ecda-b9d4-76f9-a165-852804a7b778', '01a1ecda-b9d4-7c43-995b-ee2dc2dbef3b', 1, 0);
INSERT INTO holdfast_made.family VALUES ('01a1ecda-b9d4-76f9-a165-852804a7b778', '01a1ecda-b9d4-7b61-aff1-d65ea974e31a', 1, 0);
INSERT INTO holdfast_made.family VALUES ('01a1ecda-b9d4-76f9-a165-852804a7b778', '01a1ecda-b9d4-7d74-922a-1fc186fe9c53', 1, 0);
INSERT INTO holdfast_made.family VALUES ('01a1ecda-b9d4-76f9-a165-852804a7b778', '01a1ecda-b9d4-778d-9b85-5e9475c6878d', 1, 0);
INSERT INTO holdfast_made.family VALUES ('01a1ecda-b9d4-76f9-a165-852804a7b778', '01a1ecda-b9d4-753c-ad66-9c7c85a641e8', 1, 0);
INSERT INTO holdfast_made.family VALUES ('01a1ecda-b9d4-76f9-a165-852804a7b778', '~map:upgrades.given#1', 6, 0);
INSERT INTO holdfast_made.family VALUES ('01a1ecda-b9c9-7762-9f8b-87354d14e9ee', 'undo', 1, 0);
INSERT INTO holdfast_made.job VALUES (22842354067046402, '01a1ecda-b9a5-7379-b60d-ab2ff38cd4bb', 'upgrades.plain', 'later', '[2]', 'f9ece9be35f186bab18142baa5317d53', 0, NULL, NULL, NULL, NULL, 1794975119781, NULL, '{"retry":{},"keep_ms":3456000000000}', 'scheduled', 1, 1794978719781, 0, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, 'scheduled', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046403, '01a1ecda-b9ac-72bb-978a-fff65c4886ea', 'upgrades.plain', 'later', '[3]', 'e1f2255035568a21f1667b4a391e75f5', 3, NULL, NULL, NULL, NULL, 1794975119788, NULL, '{"retry":{},"keep_ms":3456000000000}', 'available', 1, 1794975119788, 0, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046404, '01a1ecda-b9ad-732a-a2e1-b27f25b4caec', 'upgrades.plain', 'later', '[4]', 'b9b721b40392eec945cb5938ad5edece', 4, 'k-2', NULL, NULL, NULL, 1794975119789, NULL, '{"retry":{},"keep_ms":3456000000000}', 'available', 1, 1794975119789, 0, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046416, '01a1ecda-b9d5-72ec-b867-a40cc558c302', 'upgrades.shown', 'later', '[[1,2]]', '90f962fb57b3eaf050dce389082e06fc', 0, NULL, NULL, NULL, NULL, 1794975119829, NULL, '{"retry":{},"keep_ms":3456000000000}', 'available', 1, 1794975119829, 0, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046417, '01a1ecda-b9d6-742d-87b3-f46c76d077a9', 'upgrades.shown', 'later', '["YWI="]', '5a850bf7c7a0a42ea3f007f5c14a93bf', 0, NULL, NULL, NULL, NULL, 1794975119830, NULL, '{"retry":{},"keep_ms":3456000000000}', 'available', 1, 1794975119830, 0, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046418, '01a1ecda-b9d6-742d-87b3-f46cd5d40d8c', 'upgrades.shown', 'later', '[{"1":2}]', '3dbb6e92cb6b3b1adf32bd65bc15373a', 0, NULL, NULL, NULL, NULL, 1794975119830, NULL, '{"retry":{},"keep_ms":3456000000000}', 'available', 1, 1794975119830, 0, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046419, '01a1ecda-b9d7-7335-bfff-6e37b316fc7f', 'upgrades.shown', 'later', '["1.5"]', '33fc90c14046a5ecc8a11d02ad73b4fa', 0, NULL, NULL, NULL, NULL, 1794975119831, NULL, '{"retry":{},"keep_ms":3456000000000}', 'available', 1, 1794975119831, 0, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046420, '01a1ecda-b9d8-750b-b179-304459b6f6bc', 'upgrades.shown', 'later', '["2026-03-01T00:00:00Z"]', '5e3cb1552cb9aa3961e56bd7e8c90ee2', 0, NULL, NULL, NULL, NULL, 1794975119832, NULL, '{"retry":{},"keep_ms":3456000000000}', 'available', 1, 1794975119832, 0, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046421, '01a1ecda-b9d9-74bf-a256-5168a378f4fd', 'upgrades.shown', 'later', '[{"width":1}]', '61ead992a1b9a905e3ca70d13b640089', 0, NULL, NULL, NULL, NULL, 1794975119833, NULL, '{"retry":{},"keep_ms":3456000000000}', 'available', 1, 1794975119833, 0, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046425, '01a1ecda-b9db-711d-a797-3c4bbae885ec', 'upgrades.plain', 'later', '[5]', '8f78020ee7e398c63e4ecfb9adadaaa0', 0, NULL, NULL, NULL, NULL, 1794975119835, NULL, '{}', 'pending', 1, NULL, 0, 1, 0, NULL, NULL, '[{"kind":"activation"}]', NULL, NULL, NULL, NULL, NULL, false, 'pending', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046430, '01a1ecda-b9d4-7c43-995b-ee2dc2dbef3b', 'upgrades.given', 'later', '["YWI="]', '1e5ce933ad8cf494b1572f7896a58030', 0, NULL, NULL, '01a1ecda-b9d4-76f9-a165-852804a7b778', '01a1ecda-b9d4-7c43-995b-ee2dc2dbef3b', 1794975120044, NULL, '{"retry":{},"keep_ms":3456000000000}', 'available', 1, 1794975120044, 0, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046406, '01a1ecda-b9c6-73ab-8ca3-d9e09266f2be', 'upgrades.parent', 'default', '[3]', 'bd9ed0b15a32af02bb5893c0c2d9cc45', 0, NULL, NULL, NULL, NULL, 1794975119814, NULL, '{"retry":{},"keep_ms":3456000000000}', 'pending', 3, NULL, 1, 1, 0, NULL, NULL, '[{"kind":"children","name":"~map:upgrades.child#1"}]', NULL, NULL, NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046422, '01a1ecda-b9da-7792-98fc-07ce2f7172e2', 'upgrades.broken', 'default', '[1]', '51879a9dc4d82f48b59a8e4204f8a343', 0, NULL, NULL, NULL, NULL, 1794975119834, NULL, '{"retry":{"retries":0},"keep_ms":3456000000000}', 'review', 3, 1794975119834, 1, 2, 0, NULL, NULL, NULL, NULL, '{"type":"ValueError","message":"broken then","traceback":"Traceback (most recent call last):\n  File \"/tmp/tmpxo8sqkyx/code/holdfast/worker/handler.py\", line 23, in guarded\n    return await work(attempt), None\n           ^^^^^^^^^^^^^^^^^^^\n  File \"/tmp/tmpxo8sqkyx/code/holdfast/worker/handler.py\", line 35, in handled\n    value = await spec.function(*args, **kwargs)\n            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/tmp/tmpxo8sqkyx/code/tests/engines/upgrades/jobs.py\", line 125, in broken\n    raise ValueError(\"broken then\")\nValueError: broken then\n"}', NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046413, '01a1ecda-b9ca-7411-af99-1eef2d88a6b6', 'upgrades.plain_taker', 'default', '[]', 'f33752ed2884573bdc2c7ee7b8ac555c', 0, NULL, NULL, NULL, NULL, 1794975119818, NULL, '{"retry":{},"keep_ms":3456000000000}', 'pending', 3, NULL, 1, 1, 0, NULL, NULL, '[{"kind":"signal","name":"go"}]', NULL, NULL, NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046405, '01a1ecda-b9c5-74fa-8007-db8764d2b58f', 'upgrades.stepped', 'default', '[3]', '9b18605edf39bd02f7c4f4cfcb6305e0', 0, NULL, NULL, NULL, NULL, 1794975119813, NULL, '{"retry":{},"keep_ms":3456000000000}', 'active', 4, 1794975119813, 2, 1, 1, 'w-second', 1794975122443, NULL, NULL, NULL, NULL, NULL, NULL, false, 'available', 0, 4);
INSERT INTO holdfast_made.job VALUES (22842354067046410, '01a1ecda-b9c8-7590-9f2b-ac331398b359', 'upgrades.buyer', 'default', '[]', 'ed6267b63ec5cb914dd721f0961fd969', 0, NULL, NULL, NULL, NULL, 1794975119816, NULL, '{"retry":{},"keep_ms":3456000000000}', 'review', 3, 1794975119816, 1, 1, 0, NULL, NULL, NULL, NULL, '{"type":"EffectInDoubt","message":"pay#payment 1 was begun and not recorded: it may have happened; look, then holdfast resolve ID --step STEP with --result VALUE if it did, or --again if it did not"}', NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046414, '01a1ecda-b9d3-7298-ba02-a5545636d7e0', 'upgrades.apart', 'default', '[]', 'ac808496f1643047e382e16f6079b723', 0, NULL, NULL, NULL, NULL, 1794975119827, NULL, '{"retry":{},"keep_ms":3456000000000}', 'pending', 5, NULL, 2, 1, 1, NULL, NULL, '[{"kind":"signal","name":"go"}]', NULL, NULL, NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046407, '01a1ecda-b9c7-731c-bd90-5e7300b93be6', 'upgrades.listener', 'default', '[]', 'bcff928ac5e8272134bbb6034ac58fde', 0, NULL, NULL, NULL, NULL, 1794975119815, NULL, '{"retry":{},"keep_ms":3456000000000}', 'pending', 4, NULL, 1, 1, 0, NULL, NULL, '[{"kind":"signal","name":"go"}]', NULL, NULL, NULL, NULL, '[{"version":4,"name":"other","value":"7","by":"caller","at":1794975122570}]', false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046426, '01a1ecda-b9d4-7f36-87bb-e2e77832031c', 'upgrades.given', 'later', '[[1,2]]', 'd84dadd6306858b45bf9286e2c7e9733', 0, NULL, NULL, '01a1ecda-b9d4-76f9-a165-852804a7b778', '01a1ecda-b9d4-7f36-87bb-e2e77832031c', 1794975119930, NULL, '{"retry":{},"keep_ms":3456000000000}', 'available', 1, 1794975119930, 0, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046427, '01a1ecda-b9c6-7b59-914f-d01f85ed62d0', 'upgrades.child', 'later', '[0]', '9d8c125de23d1275e5043dad071be930', 0, NULL, NULL, '01a1ecda-b9c6-73ab-8ca3-d9e09266f2be', '~map:upgrades.child#1', 1794975119916, NULL, '{"retry":{},"keep_ms":3456000000000}', 'available', 1, 1794975119916, 0, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046428, '01a1ecda-b9c6-7aff-bc28-bcea340f90fd', 'upgrades.child', 'later', '[1]', '9d620bee4532a2234f858b1c6ef183b7', 0, NULL, NULL, '01a1ecda-b9c6-73ab-8ca3-d9e09266f2be', '~map:upgrades.child#1', 1794975119916, NULL, '{"retry":{},"keep_ms":3456000000000}', 'available', 1, 1794975119916, 0, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046429, '01a1ecda-b9c6-7b16-96c8-4e5b0518394a', 'upgrades.child', 'later', '[2]', 'd26dbc04f13b5832c402c27284261f57', 0, NULL, NULL, '01a1ecda-b9c6-73ab-8ca3-d9e09266f2be', '~map:upgrades.child#1', 1794975119916, NULL, '{"retry":{},"keep_ms":3456000000000}', 'available', 1, 1794975119916, 0, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046409, '01a1ecda-b9c8-7590-9f2b-ac324ad169bb', 'upgrades.flaky', 'default', '[]', '4e559ab8e9a655e3c643bf69c09ed0c5', 0, NULL, NULL, NULL, NULL, 1794975119816, NULL, '{"retry":{"retries":5,"initial_ms":3600000},"keep_ms":3456000000000}', 'retryable', 3, 1794975307926, 1, 2, 0, NULL, NULL, NULL, NULL, '{"type":"ValueError","message":"not then","traceback":"Traceback (most recent call last):\n  File \"/tmp/tmpxo8sqkyx/code/holdfast/worker/handler.py\", line 23, in guarded\n    return await work(attempt), None\n           ^^^^^^^^^^^^^^^^^^^\n  File \"/tmp/tmpxo8sqkyx/code/holdfast/worker/handler.py\", line 35, in handled\n    value = await spec.function(*args, **kwargs)\n            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/tmp/tmpxo8sqkyx/code/tests/engines/upgrades/jobs.py\", line 119, in flaky\n    raise ValueError(\"not then\")\nValueError: not then\n"}', NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046431, '01a1ecda-b9d4-7b61-aff1-d65ea974e31a', 'upgrades.given', 'later', '[{"1":2}]', '324f51bb34eb16a62b73edaed70548a3', 0, NULL, NULL, '01a1ecda-b9d4-76f9-a165-852804a7b778', '01a1ecda-b9d4-7b61-aff1-d65ea974e31a', 1794975120123, NULL, '{"retry":{},"keep_ms":3456000000000}', 'available', 1, 1794975120123, 0, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046432, '01a1ecda-b9d4-7d74-922a-1fc186fe9c53', 'upgrades.given', 'later', '["1.5"]', '5f2b45cc59ca2878c8d34c74dc8efa17', 0, NULL, NULL, '01a1ecda-b9d4-76f9-a165-852804a7b778', '01a1ecda-b9d4-7d74-922a-1fc186fe9c53', 1794975120167, NULL, '{"retry":{},"keep_ms":3456000000000}', 'available', 1, 1794975120167, 0, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046408, '01a1ecda-b9c7-731c-bd90-5e736b4b8bb8', 'upgrades.sleeper', 'default', '[]', 'f1984e18f43ed32e32f8caea4c500102', 0, NULL, NULL, NULL, NULL, 1794975119815, NULL, '{"retry":{},"keep_ms":3456000000000}', 'scheduled', 3, 1794978720030, 1, 1, 0, NULL, NULL, '[{"kind":"time","until":1794978720030}]', NULL, NULL, NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046433, '01a1ecda-b9d4-778d-9b85-5e9475c6878d', 'upgrades.given', 'later', '["2026-03-01T00:00:00Z"]', '5bf602fdbd194baa53647b9afeabe522', 0, NULL, NULL, '01a1ecda-b9d4-76f9-a165-852804a7b778', '01a1ecda-b9d4-778d-9b85-5e9475c6878d', 1794975120196, NULL, '{"retry":{},"keep_ms":3456000000000}', 'available', 1, 1794975120196, 0, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046423, '01a1ecda-b9da-7792-98fc-07ce636e0ae3', 'upgrades.broken', 'default', '[2]', 'c3c33a0382a1bac1d503044bc29ac910', 0, NULL, NULL, NULL, NULL, 1794975119834, NULL, '{"retry":{"retries":0},"keep_ms":3456000000000}', 'review', 3, 1794975119834, 1, 2, 0, NULL, NULL, NULL, NULL, '{"type":"ValueError","message":"broken then","traceback":"Traceback (most recent call last):\n  File \"/tmp/tmpxo8sqkyx/code/holdfast/worker/handler.py\", line 23, in guarded\n    return await work(attempt), None\n           ^^^^^^^^^^^^^^^^^^^\n  File \"/tmp/tmpxo8sqkyx/code/holdfast/worker/handler.py\", line 35, in handled\n    value = await spec.function(*args, **kwargs)\n            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/tmp/tmpxo8sqkyx/code/tests/engines/upgrades/jobs.py\", line 125, in broken\n    raise ValueError(\"broken then\")\nValueError: broken then\n"}', NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046412, '01a1ecda-b9c9-7762-9f8b-8735da7b14c8', 'upgrades.taker', 'default', '[]', '9c49c3a1f98249a7dec4f5c5015820ab', 0, NULL, NULL, NULL, NULL, 1794975119817, NULL, '{"retry":{},"keep_ms":3456000000000}', 'pending', 3, NULL, 1, 1, 0, NULL, NULL, '[{"kind":"signal","name":"go"}]', NULL, NULL, NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046434, '01a1ecda-b9d4-753c-ad66-9c7c85a641e8', 'upgrades.given', 'later', '[{"width":1}]', 'fe7d485461d0f0b2bde9b93ec1c3864e', 0, NULL, NULL, '01a1ecda-b9d4-76f9-a165-852804a7b778', '01a1ecda-b9d4-753c-ad66-9c7c85a641e8', 1794975120292, NULL, '{"retry":{},"keep_ms":3456000000000}', 'available', 1, 1794975120292, 0, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046435, '01a1ecda-b9d4-7600-877b-633ffa4a1a27', 'upgrades.given', 'later', '[[1,2]]', 'd84dadd6306858b45bf9286e2c7e9733', 0, NULL, NULL, '01a1ecda-b9d4-76f9-a165-852804a7b778', '~map:upgrades.given#1', 1794975120343, NULL, '{"retry":{},"keep_ms":3456000000000}', 'available', 1, 1794975120343, 0, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046436, '01a1ecda-b9d4-79e5-b524-ce402af4b68a', 'upgrades.given', 'later', '["YWI="]', '1e5ce933ad8cf494b1572f7896a58030', 0, NULL, NULL, '01a1ecda-b9d4-76f9-a165-852804a7b778', '~map:upgrades.given#1', 1794975120343, NULL, '{"retry":{},"keep_ms":3456000000000}', 'available', 1, 1794975120343, 0, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046437, '01a1ecda-b9d4-7d98-b257-bec6b69ebc04', 'upgrades.given', 'later', '[{"1":2}]', '324f51bb34eb16a62b73edaed70548a3', 0, NULL, NULL, '01a1ecda-b9d4-76f9-a165-852804a7b778', '~map:upgrades.given#1', 1794975120343, NULL, '{"retry":{},"keep_ms":3456000000000}', 'available', 1, 1794975120343, 0, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046415, '01a1ecda-b9d4-76f9-a165-852804a7b778', 'upgrades.giver', 'default', '[]', 'a8b2c93f78f41ac4a8212b7096a34e8c', 0, NULL, NULL, NULL, NULL, 1794975119828, NULL, '{"retry":{},"keep_ms":3456000000000}', 'pending', 3, NULL, 1, 1, 0, NULL, NULL, '[{"kind":"children","name":"01a1ecda-b9d4-778d-9b85-5e9475c6878d"},{"kind":"children","name":"01a1ecda-b9d4-7b61-aff1-d65ea974e31a"},{"kind":"children","name":"01a1ecda-b9d4-753c-ad66-9c7c85a641e8"},{"kind":"children","name":"01a1ecda-b9d4-7d74-922a-1fc186fe9c53"},{"kind":"children","name":"~map:upgrades.given#1"},{"kind":"children","name":"01a1ecda-b9d4-7c43-995b-ee2dc2dbef3b"},{"kind":"children","name":"01a1ecda-b9d4-7f36-87bb-e2e77832031c"}]', NULL, NULL, NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046438, '01a1ecda-b9d4-7386-a554-c2cbe77eb65a', 'upgrades.given', 'later', '["1.5"]', '5f2b45cc59ca2878c8d34c74dc8efa17', 0, NULL, NULL, '01a1ecda-b9d4-76f9-a165-852804a7b778', '~map:upgrades.given#1', 1794975120343, NULL, '{"retry":{},"keep_ms":3456000000000}', 'available', 1, 1794975120343, 0, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046439, '01a1ecda-b9d4-7368-aa3e-9ef1c33b5ec0', 'upgrades.given', 'later', '["2026-03-01T00:00:00Z"]', '5bf602fdbd194baa53647b9afeabe522', 0, NULL, NULL, '01a1ecda-b9d4-76f9-a165-852804a7b778', '~map:upgrades.given#1', 1794975120343, NULL, '{"retry":{},"keep_ms":3456000000000}', 'available', 1, 1794975120343, 0, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046440, '01a1ecda-b9d4-76f8-aea3-e2865ba13b28', 'upgrades.given', 'later', '[{"width":1}]', 'fe7d485461d0f0b2bde9b93ec1c3864e', 0, NULL, NULL, '01a1ecda-b9d4-76f9-a165-852804a7b778', '~map:upgrades.given#1', 1794975120343, NULL, '{"retry":{},"keep_ms":3456000000000}', 'available', 1, 1794975120343, 0, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.job VALUES (22842354067046441, '01a1ecda-b9c9-78f1-bfb7-81281606cbee', 'holdfast.undo', 'default', '["01a1ecda-b9c9-7762-9f8b-87354d14e9ee"]', '', 0, NULL, NULL, '01a1ecda-b9c9-7762-9f8b-87354d14e9ee', 'undo', 1794975122576, NULL, '{"keep_ms":3456000000000}', 'available', 1, 1794975122576, 0, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, 'available', 0, NULL);
INSERT INTO holdfast_made.key VALUES ('upgrades.plain', 'k-1', '01a1ecda-b990-7603-a3ed-5c0675daac30', '89366b6ad129e12bc7bf4978b5607c30', NULL, 1794975119760);
INSERT INTO holdfast_made.key VALUES ('upgrades.plain', 'k-2', '01a1ecda-b9ad-732a-a2e1-b27f25b4caec', 'b9b721b40392eec945cb5938ad5edece', NULL, 1794975119789);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b990-7603-a3ed-5c0675daac30', 22842354067046401);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9a5-7379-b60d-ab2ff38cd4bb', 22842354067046402);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9ac-72bb-978a-fff65c4886ea', 22842354067046403);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9ad-732a-a2e1-b27f25b4caec', 22842354067046404);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9c5-74fa-8007-db8764d2b58f', 22842354067046405);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9c6-73ab-8ca3-d9e09266f2be', 22842354067046406);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9c7-731c-bd90-5e7300b93be6', 22842354067046407);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9c7-731c-bd90-5e736b4b8bb8', 22842354067046408);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9c8-7590-9f2b-ac324ad169bb', 22842354067046409);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9c8-7590-9f2b-ac331398b359', 22842354067046410);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9c9-7762-9f8b-87354d14e9ee', 22842354067046411);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9c9-7762-9f8b-8735da7b14c8', 22842354067046412);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9ca-7411-af99-1eef2d88a6b6', 22842354067046413);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9d3-7298-ba02-a5545636d7e0', 22842354067046414);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9d4-76f9-a165-852804a7b778', 22842354067046415);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9d5-72ec-b867-a40cc558c302', 22842354067046416);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9d6-742d-87b3-f46c76d077a9', 22842354067046417);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9d6-742d-87b3-f46cd5d40d8c', 22842354067046418);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9d7-7335-bfff-6e37b316fc7f', 22842354067046419);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9d8-750b-b179-304459b6f6bc', 22842354067046420);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9d9-74bf-a256-5168a378f4fd', 22842354067046421);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9da-7792-98fc-07ce2f7172e2', 22842354067046422);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9da-7792-98fc-07ce636e0ae3', 22842354067046423);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9db-711d-a797-3c4b893cf24d', 22842354067046424);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9db-711d-a797-3c4bbae885ec', 22842354067046425);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9d4-7f36-87bb-e2e77832031c', 22842354067046426);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9c6-7b59-914f-d01f85ed62d0', 22842354067046427);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9c6-7aff-bc28-bcea340f90fd', 22842354067046428);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9c6-7b16-96c8-4e5b0518394a', 22842354067046429);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9d4-7c43-995b-ee2dc2dbef3b', 22842354067046430);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9d4-7b61-aff1-d65ea974e31a', 22842354067046431);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9d4-7d74-922a-1fc186fe9c53', 22842354067046432);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9d4-778d-9b85-5e9475c6878d', 22842354067046433);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9d4-753c-ad66-9c7c85a641e8', 22842354067046434);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9d4-7600-877b-633ffa4a1a27', 22842354067046435);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9d4-79e5-b524-ce402af4b68a', 22842354067046436);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9d4-7d98-b257-bec6b69ebc04', 22842354067046437);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9d4-7386-a554-c2cbe77eb65a', 22842354067046438);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9d4-7368-aa3e-9ef1c33b5ec0', 22842354067046439);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9d4-76f8-aea3-e2865ba13b28', 22842354067046440);
INSERT INTO holdfast_made.name VALUES ('01a1ecda-b9c9-78f1-bfb7-81281606cbee', 22842354067046441);
INSERT INTO holdfast_made.record VALUES ('leader', '{"worker":"w-second"}', 2, 1794975122505);
INSERT INTO holdfast_made.record VALUES ('pause/default', '{"by":"making","reason":""}', 1, 1794975122566);
INSERT INTO holdfast_made.record VALUES ('note/kept', 'kept', 1, 1794975122567);
INSERT INTO holdfast_made.record VALUES ('note/gone', NULL, 2, 1794975122569);
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046405, 'draw#db377ebea649527e', 1, 'draw', 'done', 1, 1794975119946, 1794975119946, NULL, '"0 then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046407, 'draw#db377ebea649527e', 2, 'draw', 'done', 1, 1794975119947, 1794975119947, NULL, '"0 then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046408, 'draw#db377ebea649527e', 3, 'draw', 'done', 1, 1794975119947, 1794975119947, NULL, '"0 then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046410, 'draw#db377ebea649527e', 4, 'draw', 'done', 1, 1794975119936, 1794975119936, NULL, '"0 then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046411, '~undo/paint#85d3d36058f84517', 5, '~undo', 'started', 1, 1794975119936, NULL, NULL, '{"place":"tests.engines.upgrades.jobs","step":"paint"}');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046412, 'took#85d3d36058f84517', 6, 'took', 'done', 1, 1794975119936, 1794975119937, NULL, '"[1, 2] then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046413, 'took_plainly#85d3d36058f84517', 7, 'took_plainly', 'done', 1, 1794975119937, 1794975119937, NULL, '"[1, 2] then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046410, 'pay#payment 1', 8, 'pay', 'started', 1, 1794975120007, NULL, NULL, '{"effect":"once"}');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046411, 'paint#85d3d36058f84517', 9, 'paint', 'done', 1, 1794975119936, 1794975120007, NULL, '"1 then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046412, 'took#e9b4131a2212f745', 10, 'took', 'done', 1, 1794975120007, 1794975120007, NULL, '"YWI= then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046413, 'took_plainly#e9b4131a2212f745', 11, 'took_plainly', 'done', 1, 1794975120008, 1794975120008, NULL, '"YWI= then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046412, 'took#62879c7571370713', 12, 'took', 'done', 1, 1794975120095, 1794975120095, NULL, '"{''1'': 2} then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046413, 'took_plainly#62879c7571370713', 13, 'took_plainly', 'done', 1, 1794975120095, 1794975120095, NULL, '"{''1'': 2} then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046412, 'took#d08fac18abd22028', 14, 'took', 'done', 1, 1794975120107, 1794975120107, NULL, '"1.5 then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046407, '~wait/go', 15, '~wait', 'started', 1, 1794975120030, NULL, NULL, '{"name":"go","schema":{"type":"integer"},"until":null}');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046408, '~wait/sleep:1 h', 16, '~wait', 'started', 1, 1794975120031, NULL, NULL, '{"until":1794978720030}');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046412, 'took#df86fb180083e9f7', 17, 'took', 'done', 1, 1794975120147, 1794975120147, NULL, '"2026-03-01T00:00:00Z then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046413, 'took_plainly#d08fac18abd22028', 18, 'took_plainly', 'done', 1, 1794975120165, 1794975120165, NULL, '"1.5 then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046412, 'took#3e670b2fe4792fec', 19, 'took', 'done', 1, 1794975120211, 1794975120211, NULL, '"{''width'': 1} then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046413, 'took_plainly#df86fb180083e9f7', 20, 'took_plainly', 'done', 1, 1794975120219, 1794975120219, NULL, '"2026-03-01T00:00:00Z then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046412, 'took#85d3d36058f84517#2', 21, 'took', 'done', 1, 1794975120227, 1794975120227, NULL, '"[1, 2] then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046412, 'took#e9b4131a2212f745#2', 22, 'took', 'done', 1, 1794975120227, 1794975120227, NULL, '"YWI= then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046412, 'took#62879c7571370713#2', 23, 'took', 'done', 1, 1794975120227, 1794975120227, NULL, '"{''1'': 2} then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046412, 'took#d08fac18abd22028#2', 24, 'took', 'done', 1, 1794975120227, 1794975120227, NULL, '"1.5 then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046412, 'took#df86fb180083e9f7#2', 25, 'took', 'done', 1, 1794975120227, 1794975120227, NULL, '"2026-03-01T00:00:00Z then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046412, 'took#3e670b2fe4792fec#2', 26, 'took', 'done', 1, 1794975120228, 1794975120228, NULL, '"{''width'': 1} then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046413, 'took_plainly#3e670b2fe4792fec', 27, 'took_plainly', 'done', 1, 1794975120233, 1794975120233, NULL, '"{''width'': 1} then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046412, 'took_plainly#85d3d36058f84517', 28, 'took_plainly', 'done', 1, 1794975120232, 1794975120234, NULL, '"[1, 2] then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046412, 'took_plainly#e9b4131a2212f745', 29, 'took_plainly', 'done', 1, 1794975120233, 1794975120234, NULL, '"YWI= then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046412, 'took_plainly#62879c7571370713', 30, 'took_plainly', 'done', 1, 1794975120233, 1794975120234, NULL, '"{''1'': 2} then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046412, 'took_plainly#d08fac18abd22028', 31, 'took_plainly', 'done', 1, 1794975120234, 1794975120234, NULL, '"1.5 then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046412, 'took_plainly#df86fb180083e9f7', 32, 'took_plainly', 'done', 1, 1794975120234, 1794975120234, NULL, '"2026-03-01T00:00:00Z then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046412, 'took_plainly#3e670b2fe4792fec', 33, 'took_plainly', 'done', 1, 1794975120234, 1794975120234, NULL, '"{''width'': 1} then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046413, 'took_plainly#85d3d36058f84517#2', 34, 'took_plainly', 'done', 1, 1794975120240, 1794975120240, NULL, '"[1, 2] then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046413, 'took_plainly#e9b4131a2212f745#2', 35, 'took_plainly', 'done', 1, 1794975120241, 1794975120241, NULL, '"YWI= then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046413, 'took_plainly#62879c7571370713#2', 36, 'took_plainly', 'done', 1, 1794975120241, 1794975120241, NULL, '"{''1'': 2} then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046413, 'took_plainly#d08fac18abd22028#2', 37, 'took_plainly', 'done', 1, 1794975120242, 1794975120242, NULL, '"1.5 then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046413, 'took_plainly#df86fb180083e9f7#2', 38, 'took_plainly', 'done', 1, 1794975120242, 1794975120242, NULL, '"2026-03-01T00:00:00Z then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046413, 'took_plainly#3e670b2fe4792fec#2', 39, 'took_plainly', 'done', 1, 1794975120242, 1794975120242, NULL, '"{''width'': 1} then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046411, '~wait/never', 40, '~wait', 'started', 1, 1794975120106, NULL, NULL, '{"name":"never","schema":{},"until":null}');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046412, '~wait/go', 41, '~wait', 'started', 1, 1794975120242, NULL, NULL, '{"name":"go","schema":{},"until":null}');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046413, '~wait/go', 42, '~wait', 'started', 1, 1794975120257, NULL, NULL, '{"name":"go","schema":{},"until":null}');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046414, 'took_apart#85d3d36058f84517', 43, 'took_apart', 'done', 1, 1794975119938, 1794975121371, NULL, '"[1, 2] then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046414, 'took_apart#e9b4131a2212f745', 44, 'took_apart', 'done', 1, 1794975119938, 1794975121374, NULL, '"YWI= then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046414, 'took_apart#62879c7571370713', 45, 'took_apart', 'done', 1, 1794975119938, 1794975121376, NULL, '"{''1'': 2} then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046414, 'took_apart#3e670b2fe4792fec', 46, 'took_apart', 'done', 1, 1794975119938, 1794975121383, NULL, '"{''width'': 1} then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046414, 'took_apart#d08fac18abd22028', 47, 'took_apart', 'done', 1, 1794975119938, 1794975121383, NULL, '"1.5 then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046414, 'took_apart#df86fb180083e9f7', 48, 'took_apart', 'done', 1, 1794975119938, 1794975121409, NULL, '"2026-03-01T00:00:00Z then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046414, 'took_apart#85d3d36058f84517#2', 49, 'took_apart', 'done', 1, 1794975121410, 1794975121411, NULL, '"[1, 2] then"');
INSERT INTO holdfast_made.step_20775 VALUES (22842354067046414, '~wait/go', 50, '~wait', 'started', 2, 1794975122503, NULL, NULL, '{"name":"go","schema":{},"until":null}');
INSERT INTO holdfast_made.store VALUES (true, 1, 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('later', 'scheduled', 1);
INSERT INTO holdfast_made.tally VALUES ('later', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('later', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('later', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('later', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('later', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('later', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('later', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('later', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('later', 'pending', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'available', -6);
INSERT INTO holdfast_made.tally VALUES ('default', 'active', 6);
INSERT INTO holdfast_made.tally VALUES ('default', 'available', -6);
INSERT INTO holdfast_made.tally VALUES ('default', 'active', 6);
INSERT INTO holdfast_made.tally VALUES ('default', 'active', -1);
INSERT INTO holdfast_made.tally VALUES ('default', 'completed', 1);
INSERT INTO holdfast_made.tally VALUES ('later', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('later', 'available', 3);
INSERT INTO holdfast_made.tally VALUES ('later', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'retryable', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'active', -1);
INSERT INTO holdfast_made.tally VALUES ('default', 'available', -3);
INSERT INTO holdfast_made.tally VALUES ('default', 'active', 3);
INSERT INTO holdfast_made.tally VALUES ('later', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'pending', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'active', -1);
INSERT INTO holdfast_made.tally VALUES ('later', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'scheduled', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'active', -1);
INSERT INTO holdfast_made.tally VALUES ('default', 'pending', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'active', -1);
INSERT INTO holdfast_made.tally VALUES ('later', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'pending', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'active', -1);
INSERT INTO holdfast_made.tally VALUES ('default', 'review', 3);
INSERT INTO holdfast_made.tally VALUES ('default', 'active', -3);
INSERT INTO holdfast_made.tally VALUES ('default', 'pending', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'active', -1);
INSERT INTO holdfast_made.tally VALUES ('later', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('later', 'available', 6);
INSERT INTO holdfast_made.tally VALUES ('default', 'pending', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'active', -1);
INSERT INTO holdfast_made.tally VALUES ('default', 'pending', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'active', -1);
INSERT INTO holdfast_made.tally VALUES ('default', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'active', -1);
INSERT INTO holdfast_made.tally VALUES ('default', 'available', -1);
INSERT INTO holdfast_made.tally VALUES ('default', 'active', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'review', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'active', -1);
INSERT INTO holdfast_made.tally VALUES ('default', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'active', -1);
INSERT INTO holdfast_made.tally VALUES ('default', 'available', -1);
INSERT INTO holdfast_made.tally VALUES ('default', 'active', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'pending', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'active', -1);
INSERT INTO holdfast_made.tally VALUES ('default', 'review', -1);
INSERT INTO holdfast_made.tally VALUES ('default', 'discarded', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'available', 1);
INSERT INTO holdfast_made.tally VALUES ('default', 'pending', -1);
INSERT INTO holdfast_made.tally VALUES ('default', 'cancelled', 1);
INSERT INTO holdfast_made.worker VALUES ('w-second', '{"worker":"w-second","host":"vm","pid":1765,"queues":["default"],"slots":20,"started_at":1794975122371,"running":[{"job":"01a1ecda-b9c5-74fa-8007-db8764d2b58f","epoch":2,"silent_ms":131}],"beat_ms":200,"lease_ms":1500}', 1794975122570, 200, 1500, 8556307611678779991);
ALTER TABLE ONLY holdfast_made.body
    ADD CONSTRAINT body_pkey PRIMARY KEY (n);
ALTER TABLE ONLY holdfast_made.body_20775
    ADD CONSTRAINT body_20775_pkey PRIMARY KEY (n);
ALTER TABLE ONLY holdfast_made.body_20776
    ADD CONSTRAINT body_20776_pkey PRIMARY KEY (n);
ALTER TABLE ONLY holdfast_made.body_20777
    ADD CONSTRAINT body_20777_pkey PRIMARY KEY (n);
ALTER TABLE ONLY holdfast_made.body_20778
    ADD CONSTRAINT body_20778_pkey PRIMARY KEY (n);
ALTER TABLE ONLY holdfast_made.body_rest
    ADD CONSTRAINT body_rest_pkey PRIMARY KEY (n);
ALTER TABLE ONLY holdfast_made.done
    ADD CONSTRAINT done_pkey PRIMARY KEY (n);
ALTER TABLE ONLY holdfast_made.done_20775
    ADD CONSTRAINT done_20775_pkey PRIMARY KEY (n);
ALTER TABLE ONLY holdfast_made.done_20776
    ADD CONSTRAINT done_20776_pkey PRIMARY KEY (n);
ALTER TABLE ONLY holdfast_made.done_20777
    ADD CONSTRAINT done_20777_pkey PRIMARY KEY (n);
ALTER TABLE ONLY holdfast_made.done_20778
    ADD CONSTRAINT done_20778_pkey PRIMARY KEY (n);
ALTER TABLE ONLY holdfast_made.done_rest
    ADD CONSTRAINT done_rest_pkey PRIMARY KEY (n);
ALTER TABLE ONLY holdfast_made.entry
    ADD CONSTRAINT entry_pkey PRIMARY KEY (n, version);
ALTER TABLE ONLY holdfast_made.entry_20775
    ADD CONSTRAINT entry_20775_pkey PRIMARY KEY (n, version);
ALTER TABLE ONLY holdfast_made.entry_20776
    ADD CONSTRAINT entry_20776_pkey PRIMARY KEY (n, version);
ALTER TABLE ONLY holdfast_made.entry_20777
    ADD CONSTRAINT entry_20777_pkey PRIMARY KEY (n, version);
ALTER TABLE ONLY holdfast_made.entry_20778
    ADD CONSTRAINT entry_20778_pkey PRIMARY KEY (n, version);
ALTER TABLE ONLY holdfast_made.entry_rest
    ADD CONSTRAINT entry_rest_pkey PRIMARY KEY (n, version);
ALTER TABLE ONLY holdfast_made.family
    ADD CONSTRAINT family_pkey PRIMARY KEY (parent, name);
ALTER TABLE ONLY holdfast_made.job
    ADD CONSTRAINT job_pkey PRIMARY KEY (n);
ALTER TABLE ONLY holdfast_made.key
    ADD CONSTRAINT key_pkey PRIMARY KEY (type, key);
ALTER TABLE ONLY holdfast_made.name
    ADD CONSTRAINT name_pkey PRIMARY KEY (id);
ALTER TABLE ONLY holdfast_made.record
    ADD CONSTRAINT record_pkey PRIMARY KEY (name);
ALTER TABLE ONLY holdfast_made.step
    ADD CONSTRAINT step_pkey PRIMARY KEY (n, path);
ALTER TABLE ONLY holdfast_made.step_20775
    ADD CONSTRAINT step_20775_pkey PRIMARY KEY (n, path);
ALTER TABLE ONLY holdfast_made.step_20776
    ADD CONSTRAINT step_20776_pkey PRIMARY KEY (n, path);
ALTER TABLE ONLY holdfast_made.step_20777
    ADD CONSTRAINT step_20777_pkey PRIMARY KEY (n, path);
ALTER TABLE ONLY holdfast_made.step_20778
    ADD CONSTRAINT step_20778_pkey PRIMARY KEY (n, path);
ALTER TABLE ONLY holdfast_made.step_rest
    ADD CONSTRAINT step_rest_pkey PRIMARY KEY (n, path);
ALTER TABLE ONLY holdfast_made.store
    ADD CONSTRAINT store_pkey PRIMARY KEY (one);
ALTER TABLE ONLY holdfast_made.worker
    ADD CONSTRAINT worker_pkey PRIMARY KEY (name);
CREATE INDEX done_parent ON ONLY holdfast_made.done USING btree (parent, id) WHERE (parent IS NOT NULL);
CREATE INDEX done_20775_parent_id_idx ON holdfast_made.done_20775 USING btree (parent, id) WHERE (parent IS NOT NULL);
CREATE INDEX done_old ON ONLY holdfast_made.done USING btree (prune_at, n) WHERE (prune_at IS NOT NULL);
CREATE INDEX done_20775_prune_at_n_idx ON holdfast_made.done_20775 USING btree (prune_at, n) WHERE (prune_at IS NOT NULL);
CREATE INDEX done_state ON ONLY holdfast_made.done USING btree (state, id);
CREATE INDEX done_20775_state_id_idx ON holdfast_made.done_20775 USING btree (state, id);
CREATE INDEX done_20776_parent_id_idx ON holdfast_made.done_20776 USING btree (parent, id) WHERE (parent IS NOT NULL);
CREATE INDEX done_20776_prune_at_n_idx ON holdfast_made.done_20776 USING btree (prune_at, n) WHERE (prune_at IS NOT NULL);
CREATE INDEX done_20776_state_id_idx ON holdfast_made.done_20776 USING btree (state, id);
CREATE INDEX done_20777_parent_id_idx ON holdfast_made.done_20777 USING btree (parent, id) WHERE (parent IS NOT NULL);
CREATE INDEX done_20777_prune_at_n_idx ON holdfast_made.done_20777 USING btree (prune_at, n) WHERE (prune_at IS NOT NULL);
CREATE INDEX done_20777_state_id_idx ON holdfast_made.done_20777 USING btree (state, id);
CREATE INDEX done_20778_parent_id_idx ON holdfast_made.done_20778 USING btree (parent, id) WHERE (parent IS NOT NULL);
CREATE INDEX done_20778_prune_at_n_idx ON holdfast_made.done_20778 USING btree (prune_at, n) WHERE (prune_at IS NOT NULL);
CREATE INDEX done_20778_state_id_idx ON holdfast_made.done_20778 USING btree (state, id);
CREATE INDEX done_rest_parent_id_idx ON holdfast_made.done_rest USING btree (parent, id) WHERE (parent IS NOT NULL);
CREATE INDEX done_rest_prune_at_n_idx ON holdfast_made.done_rest USING btree (prune_at, n) WHERE (prune_at IS NOT NULL);
CREATE INDEX done_rest_state_id_idx ON holdfast_made.done_rest USING btree (state, id);
CREATE INDEX job_backing_off ON holdfast_made.job USING btree (queue, run_at) WHERE ((state = 'available'::text) AND (recoveries > 1));
CREATE INDEX job_due ON holdfast_made.job USING btree (queue, run_at, n) WHERE ((state = ANY (ARRAY['scheduled'::text, 'retryable'::text, 'pending'::text])) AND (run_at IS NOT NULL));
CREATE INDEX job_expiring ON holdfast_made.job USING btree (expires_at) WHERE (expires_at IS NOT NULL);
CREATE INDEX job_held ON holdfast_made.job USING btree (worker) WHERE (state = 'active'::text);
CREATE INDEX job_parent ON holdfast_made.job USING btree (parent, id) WHERE (parent IS NOT NULL);
CREATE INDEX job_ready ON holdfast_made.job USING btree (queue, priority DESC, run_at, n) WHERE (state = 'available'::text);
CREATE INDEX job_state ON holdfast_made.job USING btree (state, id) WHERE (state <> 'active'::text);
CREATE INDEX key_over ON holdfast_made.key USING btree (until) WHERE (until IS NOT NULL);
ALTER INDEX holdfast_made.body_pkey ATTACH PARTITION holdfast_made.body_20775_pkey;
ALTER INDEX holdfast_made.body_pkey ATTACH PARTITION holdfast_made.body_20776_pkey;
ALTER INDEX holdfast_made.body_pkey ATTACH PARTITION holdfast_made.body_20777_pkey;
ALTER INDEX holdfast_made.body_pkey ATTACH PARTITION holdfast_made.body_20778_pkey;
ALTER INDEX holdfast_made.body_pkey ATTACH PARTITION holdfast_made.body_rest_pkey;
ALTER INDEX holdfast_made.done_parent ATTACH PARTITION holdfast_made.done_20775_parent_id_idx;
ALTER INDEX holdfast_made.done_pkey ATTACH PARTITION holdfast_made.done_20775_pkey;
ALTER INDEX holdfast_made.done_old ATTACH PARTITION holdfast_made.done_20775_prune_at_n_idx;
ALTER INDEX holdfast_made.done_state ATTACH PARTITION holdfast_made.done_20775_state_id_idx;
ALTER INDEX holdfast_made.done_parent ATTACH PARTITION holdfast_made.done_20776_parent_id_idx;
ALTER INDEX holdfast_made.done_pkey ATTACH PARTITION holdfast_made.done_20776_pkey;
ALTER INDEX holdfast_made.done_old ATTACH PARTITION holdfast_made.done_20776_prune_at_n_idx;
ALTER INDEX holdfast_made.done_state ATTACH PARTITION holdfast_made.done_20776_state_id_idx;
ALTER INDEX holdfast_made.done_parent ATTACH PARTITION holdfast_made.done_20777_parent_id_idx;
ALTER INDEX holdfast_made.done_pkey ATTACH PARTITION holdfast_made.done_20777_pkey;
ALTER INDEX holdfast_made.done_old ATTACH PARTITION holdfast_made.done_20777_prune_at_n_idx;
ALTER INDEX holdfast_made.done_state ATTACH PARTITION holdfast_made.done_20777_state_id_idx;
ALTER INDEX holdfast_made.done_parent ATTACH PARTITION holdfast_made.done_20778_parent_id_idx;
ALTER INDEX holdfast_made.done_pkey ATTACH PARTITION holdfast_made.done_20778_pkey;
ALTER INDEX holdfast_made.done_old ATTACH PARTITION holdfast_made.done_20778_prune_at_n_idx;
ALTER INDEX holdfast_made.done_state ATTACH PARTITION holdfast_made.done_20778_state_id_idx;
ALTER INDEX holdfast_made.done_parent ATTACH PARTITION holdfast_made.done_rest_parent_id_idx;
ALTER INDEX holdfast_made.done_pkey ATTACH PARTITION holdfast_made.done_rest_pkey;
ALTER INDEX holdfast_made.done_old ATTACH PARTITION holdfast_made.done_rest_prune_at_n_idx;
ALTER INDEX holdfast_made.done_state ATTACH PARTITION holdfast_made.done_rest_state_id_idx;
ALTER INDEX holdfast_made.entry_pkey ATTACH PARTITION holdfast_made.entry_20775_pkey;
ALTER INDEX holdfast_made.entry_pkey ATTACH PARTITION holdfast_made.entry_20776_pkey;
ALTER INDEX holdfast_made.entry_pkey ATTACH PARTITION holdfast_made.entry_20777_pkey;
ALTER INDEX holdfast_made.entry_pkey ATTACH PARTITION holdfast_made.entry_20778_pkey;
ALTER INDEX holdfast_made.entry_pkey ATTACH PARTITION holdfast_made.entry_rest_pkey;
ALTER INDEX holdfast_made.step_pkey ATTACH PARTITION holdfast_made.step_20775_pkey;
ALTER INDEX holdfast_made.step_pkey ATTACH PARTITION holdfast_made.step_20776_pkey;
ALTER INDEX holdfast_made.step_pkey ATTACH PARTITION holdfast_made.step_20777_pkey;
ALTER INDEX holdfast_made.step_pkey ATTACH PARTITION holdfast_made.step_20778_pkey;
ALTER INDEX holdfast_made.step_pkey ATTACH PARTITION holdfast_made.step_rest_pkey;
SELECT pg_catalog.setval('holdfast_made.job_n', 41, true);
SELECT pg_catalog.setval('holdfast_made.step_place', 50, true);
