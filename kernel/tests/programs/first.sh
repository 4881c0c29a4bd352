#!/bin/sh -e
# A script as the first program. Prints its arguments.
echo "script $0: $1, $2"
exit 3
