#!/bin/bash
# sbatch slurm.sh [COMMAND]         sbatch --nodes 4 slurm.sh python my_program.py
#SBATCH --job-name=jengine
#SBATCH --nodes=2
# A process for each GPU: under SLURM JAX gives each task the device of its number on the node.
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8

# Lines begin with the task's number. When a task fails, srun names it with its node and ends all.
[ $# -gt 0 ] || set -- python "${SLURM_SUBMIT_DIR:-.}/spmd.py"
exec srun --kill-on-bad-exit=1 --label "$@"
