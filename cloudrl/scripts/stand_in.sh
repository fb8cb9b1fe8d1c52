#!/usr/bin/bash -p
# Stands for a program that a script calls: writes down how it was called, and answers as far as scripts need it.
# A program that runs another one, such as srun, runs what stands behind its options. Builtins of bash alone, where one
# is enough: a script may have hundreds of calls.
[[ ${BASH_SOURCE[0]} == "$0" ]] || return 0 # a file that a script reads with `source`, and that is not here
began=$EPOCHREALTIME
name=${CLOUDRL_AS:-$0}
base=${name##*/}
if [[ $base == stand-in ]]; then
    name=$1 base=${1##*/}
    shift
fi
unset CLOUDRL_AS
arguments=("$@")
attached=()

attach() { attached+=("$1" "$2"); }

record() {
    local variable variables=()
    for variable in $(compgen -e); do
        case $variable in
        CLOUDRL_LINE | CLOUDRL_SCRIPT | CLOUDRL_OWN | CLOUDRL_RECORDS | CLOUDRL_VIA | CLOUDRL_GPUS | CLOUDRL_NODES | CLOUDRL_REAL | CLOUDRL_PROJECT | CLOUDRL_PRESENT | BASH_ENV | SHLVL | PWD | OLDPWD | _) ;;
        *) variables+=("$variable=${!variable}") ;;
        esac
    done
    printf '%s\0' "$name" "$PWD" "$CLOUDRL_LINE" "$CLOUDRL_SCRIPT" "$CLOUDRL_VIA" \
        "${#arguments[@]}" "${arguments[@]}" "${#variables[@]}" "${variables[@]}" \
        "${#attached[@]}" "${attached[@]}" >"$CLOUDRL_RECORDS/$began.$BASHPID"
}

# Sets `inner` to what stands behind the options of a program that runs another one: from the first word that is a
# program, or a script that is there. Sets variables that `-e NAME=VALUE` gives it.
find_inner() {
    local word last='' index=0
    inner=()
    while (($#)); do
        word=$1
        case $last in
        -e | --env) [[ $word == [A-Za-z_]*=* ]] && export "$word" ;;
        -w | -n | -J | --name | --job-name | --nodelist | --container-name | -p | --partition | --hostfile | -H) ;;
        *)
            case $word in
            --env=[A-Za-z_]*=*) export "${word#--env=}" ;;
            -*) ;;
            *" "*)
                if [[ $base == @(ssh|ray|docker|podman|kubectl|pdsh|srun) && $word == *@(python|torchrun|bash|ray )* ]]; then
                    inner=(bash -c "$*")
                    return
                fi
                ;;
            *)
                case ${word##*/} in
                python | python[23]* | bash | sh | zsh | torchrun | accelerate | deepspeed | env | timeout | nohup | srun | mpirun | uv | poetry | \
                    numactl | singularity | apptainer | docker | podman | hostname | nvidia-smi | pip | pip3 | huggingface-cli | hf | nsys | sleep | git)
                    inner=("$@")
                    return
                    ;;
                ray) if [[ ${2-} == @(start|stop|job|status|list|memory|up|exec|submit|logs) ]]; then
                    inner=("$@")
                    return
                fi ;;
                *.sh | *.slurm | *.sbatch) if [[ -f $word && $base != @(docker|podman) ]]; then
                    shift
                    inner=(bash "$word" "$@")
                    return
                fi ;;
                esac
                ;;
            esac
            ;;
        esac
        last=$word
        shift
    done
}

# What a step of srun knows of its nodes, tasks and GPUs (srun(1), OUTPUT ENVIRONMENT VARIABLES). Without an allocation
# around it, srun makes one of that size.
hear_counts() {
    local word name value previous='' nodes='' tasks='' of_node='' gpus=''
    for word in "$@"; do
        name=${word%%=*} value=${word#*=}
        case $word in
        --*=*) ;;
        -[NnG]?*) name=${word:0:2} value=${word:2} ;;
        -*) previous=$word && continue ;;
        *) if [[ $previous ]]; then name=$previous value=$word; else break; fi ;;
        esac
        previous=''
        value=${value%%-*} # of a range the least
        [[ $name == --gres ]] && value=${value##*:}
        [[ $value == [1-9]*([0-9]) ]] || continue
        case $name in
        -N | --nodes) nodes=$value ;;
        -n | --ntasks) tasks=$value ;;
        --ntasks-per-node) of_node=$value ;;
        --gpus-per-node | --gres) gpus=$value ;;
        esac
    done
    [[ $of_node && $nodes && ! $tasks ]] && tasks=$((nodes * of_node))
    if [[ $nodes ]]; then
        [[ ${SLURM_JOB_NUM_NODES-} ]] || export SLURM_JOB_NUM_NODES=$nodes CLOUDRL_NODES=$nodes
        export SLURM_NNODES=$nodes SLURM_STEP_NUM_NODES=$nodes
    fi
    [[ $tasks ]] && export SLURM_NTASKS=$tasks SLURM_NPROCS=$tasks SLURM_STEP_NUM_TASKS=$tasks
    [[ $of_node ]] && export SLURM_NTASKS_PER_NODE=$of_node
    [[ $gpus ]] && export CLOUDRL_GPUS=$gpus SLURM_GPUS_PER_NODE=$gpus SLURM_GPUS_ON_NODE=$gpus
    export SLURM_PROCID=${SLURM_PROCID-0} SLURM_NODEID=${SLURM_NODEID-0} SLURM_LOCALID=${SLURM_LOCALID-0}
}

run_inner() {
    find_inner "$@"
    record
    ((${#inner[@]})) || exit 0
    export CLOUDRL_VIA="${CLOUDRL_VIA:+$CLOUDRL_VIA }$base"
    exec "${inner[@]}"
}

read_option() { # NAME WORDS...: the value of --NAME VALUE or --NAME=VALUE
    local wanted=$1
    shift
    while (($#)); do
        case $1 in
        "--$wanted="*) value=${1#*=} && return 0 ;;
        "--$wanted") value=${2-} && return 0 ;;
        esac
        shift
    done
    return 1
}

gpu_lines() {
    local index
    for ((index = 0; index < CLOUDRL_GPUS; index++)); do printf "$1\n" "$index"; done
}

node_lines() {
    local index
    for ((index = 0; index < CLOUDRL_NODES; index++)); do printf "$1\n" "$index"; done
}

case $base in
python | python[23]*)
    if (($# == 0)) || [[ $1 == - ]]; then
        attach stdin "$(cat)"
    fi
    record
    case "$*" in
    *device_count*) printf '%s\n' "$CLOUDRL_GPUS" ;;
    --version | -V) printf 'Python 3.10.12\n' ;;
    esac
    ;;
ray)
    case ${1-} in
    job)
        if read_option runtime-env "$@" && [[ -f $value ]]; then attach runtime-env "$(<"$value")"; fi
        [[ ${2-} == submit ]] && run_inner "${@:3}"
        record
        ;;
    status)
        record
        printf '======== Autoscaler status ========\nNode status\n---\nActive:\n'
        node_lines ' 1 node_%s'
        printf 'Pending:\n (no pending nodes)\nRecent failures:\n (no failures)\n\nResources\n---\nUsage:\n'
        printf ' 0.0/%s.0 CPU\n 0.0/%s.0 GPU\n 0.0/%s.0 NPU\n' $((CLOUDRL_NODES * 64)) $((CLOUDRL_NODES * CLOUDRL_GPUS)) $((CLOUDRL_NODES * CLOUDRL_GPUS))
        ;;
    *) record ;;
    esac
    ;;
bash | sh | zsh | dash) # sh has no BASH_ENV
    exec "$CLOUDRL_REAL/bash" "$@" ;;
srun | salloc)
    hear_counts "$@"
    run_inner "$@"
    ;;
docker | podman | singularity | apptainer | mpirun | mpiexec | ssh | pdsh | enroot | kubectl | sudo | numactl | nsys | uv | poetry | \
    proxychains | proxychains4 | nohup | screen | tmux | xvfb-run | accelerate-launch | tini)
    run_inner "$@" ;;
sbatch | qsub | bsub)
    if read_option wrap "$@"; then
        record
        CLOUDRL_VIA="$CLOUDRL_VIA $base" exec bash -c "$value"
    fi
    run_inner "$@"
    ;;
conda | mamba | micromamba)
    [[ ${1-} == run ]] && run_inner "${@:2}"
    record
    [[ $* == "info --base" ]] && printf '/opt/conda\n'
    ;;
git)
    record
    case ${1-} in
    clone)
        target='' previous=''
        for word in "${@:2}"; do
            case $previous in -b | --branch | --depth) ;; *) [[ $word == -* ]] || { [[ $target && $word != *://* && $word != git@* ]] && target=$word || { target=${word##*/} && target=${target%.git}; }; } ;; esac
            previous=$word
        done
        [[ $target ]] && mkdir -p -- "$target"
        ;;
    rev-parse)
        case "$*" in
        *show-toplevel*) printf '%s\n' "$CLOUDRL_PROJECT" ;;
        *abbrev-ref*) printf 'main\n' ;;
        *) printf '0000000\n' ;;
        esac
        ;;
    esac
    ;;
hostname)
    record
    case ${1-} in -i | -I | --ip-address | --all-ip-addresses) printf '10.0.0.1\n' ;; *) printf 'node-0\n' ;; esac
    ;;
scontrol)
    record
    [[ ${1-} == show && ${2-} == hostname* ]] && node_lines 'node-%s'
    ;;
nvidia-smi | rocm-smi | amd-smi | npu-smi)
    record
    case "$*" in
    *--query-gpu=count* | *--query-gpu=*count*) gpu_lines "$CLOUDRL_GPUS" ;;
    *--query-gpu=*name*) gpu_lines 'NVIDIA GPU' ;;
    *--query-gpu=*) gpu_lines '%s' ;;
    *-L* | *--list-gpus*) gpu_lines 'GPU %s: NVIDIA GPU (UUID: GPU-0)' ;;
    esac
    ;;
nproc) record && printf '64\n' ;;
whoami) printf 'root\n' ;;
id) [[ $* == -*n* ]] && printf 'root\n' || printf '0\n' ;;
uname) [[ $* == *-m* ]] && printf 'x86_64\n' || printf 'Linux\n' ;;
uuidgen) printf '00000000-0000-0000-0000-000000000000\n' ;;
getconf | lscpu) record && printf '64\n' ;;
which)
    for word in "$@"; do [[ $word == -* ]] || printf '/usr/bin/%s\n' "${word##*/}"; done ;;
tee)
    record
    exec "$CLOUDRL_REAL/tee" "$@"
    ;;
*) record ;;
esac
exit 0
