#!/bin/sh
# Creates or upgrades both databases of the Temporal server. Safe to repeat; a new server version starts with it.
# The connection comes from SQL_PLUGIN, SQL_HOST, SQL_PORT, SQL_USER and SQL_PASSWORD.
set -eu

versions=/etc/temporal/schema/postgresql/v12

prepare() {
    temporal-sql-tool --db "$1" create
    temporal-sql-tool --db "$1" setup-schema -v 0.0
    temporal-sql-tool --db "$1" update-schema -d "$versions/$2/versioned"
}

prepare temporal temporal
prepare temporal_visibility visibility
