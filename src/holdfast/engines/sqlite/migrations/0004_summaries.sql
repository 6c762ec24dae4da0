-- Steps are counted as they are recorded, by name and state, so that a status reads no steps.
--
-- A job's counters are right while its `summed` equals its `version`. Every program that counts raises both together; one of
-- the version before raises the version alone, and jobs made before have none: their steps are counted when they are asked
-- for, and once for all when the next step is recorded.
alter table job add column summed integer;

create table summary (
  job integer not null,
  name text not null,                     -- empty: the steps of all names beyond the first ones
  started integer not null,
  done integer not null,
  failed integer not null,
  last integer not null,                  -- the step of this name that was first written last; 0: none is left
  more text,                              -- what later versions keep for each name
  primary key (job, name)
) strict, without rowid;

pragma user_version = 4;
