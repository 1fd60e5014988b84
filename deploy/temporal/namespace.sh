#!/bin/sh
# Creates the namespace and registers the search attributes that Bulklane's workflows set, then waits until the server
# lists them: a start that names an attribute the server doesn't know yet would hang. Safe to repeat.
set -eu

namespace=${TEMPORAL_NAMESPACE:-default}
retention=${RETENTION:-168h}
attributes="Tenant Operation Lane State"

until temporal operator cluster health >/dev/null 2>&1; do
    sleep 1
done

if ! temporal operator namespace describe --namespace "$namespace" >/dev/null 2>&1; then
    temporal operator namespace create --namespace "$namespace" --retention "$retention"
fi

is_listed() {
    temporal operator search-attribute list --namespace "$namespace" --output json | grep -q "\"$1\""
}

for name in $attributes; do
    tries=0
    until is_listed "$name"; do
        # refused while the new namespace isn't known everywhere; once registered, it takes a moment to be listed
        temporal operator search-attribute create --namespace "$namespace" --name "$name" --type Keyword || true
        tries=$((tries + 1))
        if [ "$tries" -gt 30 ]; then
            echo "the search attribute $name could not be registered in $namespace" >&2
            exit 1
        fi
        sleep 1
    done
done
