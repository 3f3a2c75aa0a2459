#!/usr/bin/env bash
# Six objectives, two ways to minimise them, three kernels, five seeds on a table, and scikit-learn's GPR beside them.
#
#   bash scripts/compare_objectives.sh [TABLE …]        boston diabetes wine_red wine_white; an hour each on one core
#
# Runs go to runs/compare/TABLE; what is completed there is not run again. The end is a table, and a CSV file of it.
set -euo pipefail
run() { kfx run -m resume=true figures=false device.threads=1 device.precision_check=off "$@"; }
for name in ${@:-boston diabetes wine_red wine_white}; do
  common=("+experiment=compare/$name" "seed=0,1,2,3,4" "kernel=rbf,rational_quadratic,rbf_network")
  folder="runs/compare/$name"
  for optimizer in adam bayesian; do
    run "${common[@]}" objective=rho,rho_polarized,rho_prediction,interpolation_error,loo "optimizer=$optimizer" \
      optimizer.space=log "hydra.sweep.dir=$folder/objectives_$optimizer"
    run "${common[@]}" objective=nll objective.scale=profiled "optimizer=$optimizer" optimizer.space=log \
      "hydra.sweep.dir=$folder/likelihood_$optimizer"
  done
  run "${common[@]}" objective=nll objective.scale=profiled regularization.selection=trained \
    evaluation.regularization.value=null "hydra.sweep.dir=$folder/likelihood_noise"
  run "${common[@]}" objective=loo regularization.selection=trained evaluation.regularization.value=null \
    "hydra.sweep.dir=$folder/loo_noise"
  batch=1000
  if [[ $name == boston || $name == diabetes ]]; then batch=null; fi
  run --plugin scripts/sklearn_gpr.py "${common[@]}" objective=nll optimizer=sklearn_gpr evaluation.regularization.value=null \
    "sampler.batch_size=$batch" "hydra.sweep.dir=$folder/sklearn"
  kfx compare "$folder" --by kernel,objective,optimizer,regularization.selection --metric mse --csv "$folder.csv"
done
