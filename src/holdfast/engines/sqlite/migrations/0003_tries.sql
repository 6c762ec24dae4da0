-- How often a step was tried before it succeeded or failed for good. Programs of the version before leave it out.
alter table step add column tries integer not null default 1;

pragma user_version = 3;
