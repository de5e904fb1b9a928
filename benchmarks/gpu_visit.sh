#!/bin/bash
# All that is to be measured on a GPU, in one visit to a machine without a network. Images are drawn: no data are needed.
#
#   OUT=results/visit OLD=../old bash benchmarks/gpu_visit.sh                    # all of it
#   OUT=results/visit bash benchmarks/gpu_visit.sh equal students                # only these
#   OUT=results/visit OLD=. TINY=1 bash benchmarks/gpu_visit.sh                  # whether it runs at all, on a CPU
#
# OLD is a tree of an older commit, which `commits` compares with this one: git worktree add ../old COMMIT. Each
# measurement has a time limit, and writes $OUT/NAME.json and $OUT/NAME.log; $OUT/visit.tsv has exit codes and seconds.
set -u
cd "$(dirname "$0")/.." || exit 2
: "${OUT:?is the folder for the results}"
mkdir -p "$OUT" || exit 2
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
PYTHON=${PYTHON:-python}
ONLY=" $* "
failed=0

measure() {  # NAME SECONDS COMMAND …
    local name=$1 limit=$2 began=$SECONDS code
    shift 2
    [[ $ONLY == "  " || $ONLY == *" $name "* ]] || return 0
    echo "$name: $*"
    timeout --kill-after=20 "$limit" "$PYTHON" "$@" > "$OUT/$name.log" 2>&1
    code=$?
    [[ $code == 0 ]] || failed=1
    printf '%s\t%s\t%s\n' "$name" "$code" "$((SECONDS - began))" | tee -a "$OUT/visit.tsv"
}

if [[ ${TINY:-} ]]; then
    own=(--set devices.trace=synthetic --set data.public_fit=exact --set clients=8)
    few=(--device cpu --samples 400 --lanes 2 "${own[@]}")
    only=(--device cpu --only "n = 1" float32)
    case=(--device cpu --repeats 1 --each 10 --rounds 2 lanes:2:float32:femnist:4)
    many=(--device cpu --scale 0.004 --precision float32 --set clients=8 --epochs 1)
    sweep=("${many[@]}" --rounds 2 --cohorts 1,2 --seeds 2)
    students=("${many[@]}" --students 2)
    bf16=("${few[@]}" --set precision=float32 --repeat 1 --size 128)
    tf32=("${bf16[@]}")
    steps=("${few[@]}" --rounds 2 --steps 5)
    each=(--device cpu --cases "n and seeds")
    ways=(--device cpu --model mlp --precision float32 --students 2 --batch 8 --repeat 1)
    exact=("${ways[@]:0:4}" --students 2 --batch 8 --repeat 1)
else
    only=()
    each=()
    ways=()
    exact=(--students 4 --batch 64)
    case=(lanes:16:bf16 lanes:64:bf16 lanes:16:tf32)
    sweep=(--rounds 600)
    students=(--students 16 --epochs 20)
    bf16=(--lanes 64 --set cohorts=16 --set precision=bf16)
    tf32=(--lanes 64 --set cohorts=16 --set precision=tf32)
    steps=(--lanes 64 --rounds 30 --set devices.trace=synthetic --set data.public_fit=exact --set cohorts=16 --set precision=bf16)
fi

measure machine 120 -m cpfl doctor
measure equal 900 benchmarks/lanes_equal.py --out "$OUT/equal.json" "${only[@]}"
measure sweep-equal 600 benchmarks/sweep_equal.py --out "$OUT/sweep-equal.json" "${each[@]}"
measure roofline 300 benchmarks/roofline.py --out "$OUT/roofline.json" "${bf16[@]}"
measure roofline-tf32 300 benchmarks/roofline.py --out "$OUT/roofline-tf32.json" "${tf32[@]}"
measure profile 300 benchmarks/lanes_profile.py --out "$OUT/profile.json" "${steps[@]}"
if [[ ${OLD:-} ]]; then
    measure commits 1200 benchmarks/two_commits.py "$OLD" . --out "$OUT/commits.json" "${case[@]}"
else
    echo "commits: skipped, since OLD is not set"
fi
measure sweep 900 benchmarks/sweep.py --out "$OUT/sweep.json" "${sweep[@]}"
measure student-ways-equal 300 benchmarks/students.py --out "$OUT/student-ways-equal.json" --precision float64 "${exact[@]}"
measure student-ways 300 benchmarks/students.py --out "$OUT/student-ways.json" "${ways[@]}"
measure students 600 benchmarks/sweep.py --out "$OUT/students.json" "${students[@]}"
exit $failed
