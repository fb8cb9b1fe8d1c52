# Read by every bash in the sandbox before its script (BASH_ENV): where commands stand, and what bash does itself.
[[ $CLOUDRL_SCRIPT ]] || CLOUDRL_SCRIPT=$0
export CLOUDRL_LINE CLOUDRL_SCRIPT
__cloudrl_at() {
    case ${BASH_SOURCE[1]-} in
    '' | "$CLOUDRL_OWN"/*) ;;
    *)
        CLOUDRL_LINE=$1 CLOUDRL_SCRIPT=${BASH_SOURCE[1]}
        [[ $CLOUDRL_PRESENT && $BASH_COMMAND == "["* ]] && __cloudrl_make "$BASH_COMMAND"
        ;;
    esac
    return 0
}
# Where a script asks whether a file is there, and ends without it: one of the nodes, which have it.
__cloudrl_asks=' -([fdesr]) +("[^"]*"|[^] ]+)(.*)'
__cloudrl_make() {
    local path kind rest=$1
    while [[ $rest =~ $__cloudrl_asks ]]; do
        kind=${BASH_REMATCH[1]} rest=${BASH_REMATCH[3]}
        path=$(eval "printf %s ${BASH_REMATCH[2]}" 2>/dev/null)
        [[ ! $path || -e $path ]] && continue
        [[ $kind == d ]] && mkdir -p -- "$path" && continue
        [[ $path == */* ]] && mkdir -p -- "${path%/*}"
        printf '\n' >"$path"
    done
}
command_not_found_handle() { "$CLOUDRL_OWN/stand-in" "$@"; }
# A node's own limits; raising one here would fail and end a script with `set -e`.
ulimit() { CLOUDRL_AS=ulimit "$CLOUDRL_OWN/stand-in" "$@"; }
# Environment modules and conda are functions of a login shell.
module() { CLOUDRL_AS=module "$CLOUDRL_OWN/stand-in" "$@"; }
conda() { CLOUDRL_AS=conda "$CLOUDRL_OWN/stand-in" "$@"; }
export -f module conda
# A loop that waits for another node would wait for ever: it ends after some rounds.
declare -A __cloudrl_rounds=()
__cloudrl_waits() {
    local at="${BASH_LINENO[0]}"
    __cloudrl_rounds[$at]=$((${__cloudrl_rounds[$at]:-0} + 1))
    ((__cloudrl_rounds[$at] < 20))
}
shopt -s expand_aliases
alias sleep='{ __cloudrl_waits || break; }; sleep'
# What `set -x` says would bury the messages, and has ours among its lines.
exec {BASH_XTRACEFD}>/dev/null
set -T
trap '__cloudrl_at $LINENO' DEBUG
