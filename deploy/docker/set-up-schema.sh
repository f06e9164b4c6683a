#!/bin/sh
# Creates the two databases of a Temporal server in PostgreSQL, or brings them up to date; can be run again at any time.
# Where PostgreSQL is: SQL_PLUGIN, SQL_HOST, SQL_PORT, SQL_USER, SQL_PASSWORD, as temporal-sql-tool reads them.
set -eu

set_up() {
  export SQL_DATABASE="$1"
  temporal-sql-tool create-database
  temporal-sql-tool setup-schema -v 0.0
  temporal-sql-tool update-schema --schema-name "postgresql/v12/$2"
}

set_up temporal temporal
set_up temporal_visibility visibility
