"""A Ray cluster in a process of its own: starting Ray forks, which a test process with numerical threads must not."""

import atexit
import functools
import subprocess
import sys


class RayHead:
    """A head with two processors; `tell` it to "add" a node with two more, or to "remove" the last one added."""

    def __init__(self) -> None:
        arguments = [sys.executable, __file__]
        self._process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.address = self._answer()

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        self._answer()

    def close(self) -> None:
        self._process.communicate("")

    def _answer(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("answer "):
                return line.split()[1]
        raise RuntimeError("the Ray cluster did not start")


@functools.cache
def shared() -> RayHead:
    """One for all tests of this process that change nothing about it."""
    head = RayHead()
    atexit.register(head.close)
    return head


def main() -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    nodes = []
    print("answer", cluster.address, flush=True)
    for line in sys.stdin:
        if line.strip() == "add":
            nodes.append(cluster.add_node(num_cpus=2))
            cluster.wait_for_nodes()
        elif line.strip() == "remove":
            cluster.remove_node(nodes.pop(), allow_graceful=False)
        print("answer", line.strip(), flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
