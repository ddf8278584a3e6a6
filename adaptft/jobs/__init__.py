"""Files that have a scheduler run a plan: each is made from a ``Job``, which is made from the plan.

job         what every scheduler is told, and the ``adaptft train`` line that runs on each machine
slurm       an sbatch script
kubernetes  a TrainJob or a PyTorchJob of Kubeflow
ray         a driver for `ray job submit`
"""

from adaptft.jobs.job import Job, job_of

__all__ = ["Job", "job_of"]
