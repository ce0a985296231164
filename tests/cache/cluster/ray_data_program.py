"""Reads a table and images with Ray Data on two nodes, and prints what came of them; knows nothing of stoker.

usage: ray_data_program.py URL FOLDER
"""

import hashlib
import sys

import ray
from ray.cluster_utils import Cluster

STORE_BYTES = 80 * 2**20


def digest(rows: list[tuple[object, ...]]) -> str:
    """Of rows in any order."""
    return f"{len(rows)} {hashlib.sha256(repr(sorted(rows)).encode()).hexdigest()}"


url, folder = sys.argv[1:]
head = {"num_cpus": 1, "object_store_memory": STORE_BYTES, "include_dashboard": False, "temp_dir": folder}
cluster = Cluster(initialize_head=True, head_node_args=head)
cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
ray.init(address=cluster.address)
assert sum(node["Alive"] for node in ray.nodes()) == 2
table = ray.data.read_parquet(f"{url}/table", override_num_blocks=4)
print("table", digest([(row["number"], row["text"]) for row in table.iter_rows()]))
images = ray.data.read_images(f"{url}/images", override_num_blocks=4, include_paths=True)
print("images", digest([(row["path"].rpartition("/")[2], row["image"].tobytes()) for row in images.iter_rows()]))
ray.shutdown()
cluster.shutdown()
