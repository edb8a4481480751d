"""Federated averaging of a small network in NVFlare's simulator."""

import argparse
from pathlib import Path

import torch
from model import SimpleNetwork
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.client.config import TransferType
from nvflare.recipe import SimEnv
from nvflare.recipe.utils import add_cross_site_evaluation


def main():
    """Describe the job and run it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--n_clients", type=int, default=3)
    parser.add_argument("--n_threads", type=int, default=3)
    parser.add_argument("--num_rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--diff", action="store_true", help="send differences instead of trained weights")
    parser.add_argument("--cross_site_eval", action="store_true")
    parser.add_argument("--workspace", default="simulation")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    initial = Path(args.workspace).absolute() / "initial.pt"
    initial.parent.mkdir(parents=True, exist_ok=True)
    torch.save(SimpleNetwork().state_dict(), initial)
    recipe = FedAvgRecipe(
        name="hello-pt",
        min_clients=args.n_clients,
        num_rounds=args.num_rounds,
        model=SimpleNetwork(),
        initial_ckpt=str(initial),
        train_script="client.py",
        train_args=f"--data {args.data} --images {args.images} --clients {args.n_clients} --seed {args.seed}",
        params_transfer_type=TransferType.DIFF if args.diff else TransferType.FULL,
    )
    if args.cross_site_eval:
        add_cross_site_evaluation(recipe)
    env = SimEnv(num_clients=args.n_clients, num_threads=args.n_threads, workspace_root=args.workspace)
    run = recipe.execute(env)
    print("Result can be found in:", run.get_result())


if __name__ == "__main__":
    main()
