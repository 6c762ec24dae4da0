-- How often a step was tried before it succeeded or failed for good. A default that is constant touches no row, so this
-- takes a moment however many steps there are. Programs of the version before leave the column out.
alter table {schema}.step add column tries bigint not null default 1;
