-- Large values and files, where no other blob store is configured (engines/postgres/blobs.py).
--
-- An object is one row in blob and its content, in parts, in blob_part. The parts have a number of their own, so that an
-- object is renamed without touching them. They aren't compressed: films and images are already.
create sequence {schema}.blob_content;

create table {schema}.blob (
  key text collate "C" primary key,
  content bigint not null,
  size bigint not null,
  at bigint not null
);

create table {schema}.blob_part (
  content bigint not null,
  nth int not null,
  bytes bytea not null,
  primary key (content, nth)
);
alter table {schema}.blob_part alter bytes set storage external;
