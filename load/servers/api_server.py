"""A Kubernetes API server on etcd, without nodes and controllers: it admits, completes and keeps documents, and runs none."""

import ssl
import subprocess
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from load.servers import go_program
from load.servers.certificates import Authority
from load.servers.server_process import HOST, ServerProcess, free_port

MODULE = Path(__file__).parent / "kubernetes"
"""The Go module that pins etcd, kube-apiserver and controller-gen."""
_TYPES = "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
_TOKEN = "only-for-tests"  # noqa: S105 - of a server on loopback


def definitions(folder: Path) -> Path:
    """Make the custom resource definitions of the Prometheus operator in a folder, from its Go types."""
    program = go_program.of_folder(MODULE, "sigs.k8s.io/controller-tools/cmd/controller-gen", "controller-gen")
    subprocess.run([program, "crd", f"paths={_TYPES}", f"output:crd:dir={folder}"], cwd=MODULE, check=True)
    return folder


class Etcd(ServerProcess):
    """One member."""

    name = "etcd"

    def _program(self) -> Path:
        return go_program.of_folder(MODULE, "go.etcd.io/etcd/server/v3", self.name)

    def _prepare(self) -> None:
        self._program()

    def _command(self) -> Sequence[str]:
        clients, peers = f"http://{self.address}", f"http://{HOST}:{free_port()}"
        return [
            str(self._program()),
            f"--data-dir={self.folder / 'data'}",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
        ]

    def _answers(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"http://{self.address}/readyz", timeout=2):
            return True
        return False


class ApiServer(ServerProcess):
    """One API server with an administrator's token; `options` are kubectl's."""

    name = "kube-apiserver"

    def __init__(self, folder: Path, etcd: Etcd) -> None:
        super().__init__(folder)
        self._etcd = etcd
        self._authority = Authority(self.folder / "certificates")

    @property
    def options(self) -> Sequence[str]:
        """What kubectl needs to reach it."""
        return [
            f"--server=https://{self.address}",
            f"--certificate-authority={self._authority.ca_file}",
            f"--token={_TOKEN}",
        ]

    def _program(self) -> Path:
        return go_program.of_folder(MODULE, "k8s.io/kubernetes/cmd/kube-apiserver", self.name)

    def _prepare(self) -> None:
        self._program()
        (self.folder / "tokens.csv").write_text(f"{_TOKEN},administrator,1,system:masters\n")

    def _command(self) -> Sequence[str]:
        served = self._authority.issue("server")
        return [
            str(self._program()),
            f"--etcd-servers=http://{self._etcd.address}",
            f"--bind-address={HOST}",
            f"--secure-port={self.port}",
            f"--tls-cert-file={served.certificate}",
            f"--tls-private-key-file={served.key}",
            f"--cert-dir={self.folder / 'certificates'}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={served.certificate}",
            f"--service-account-signing-key-file={served.key}",
            # Pods ask for a service account, which only a controller makes.
            "--disable-admission-plugins=ServiceAccount",
        ]

    def _answers(self) -> bool:
        context = ssl.create_default_context(cafile=str(self._authority.ca_file))
        request = urllib.request.Request(
            f"https://{self.address}/readyz", headers={"Authorization": f"Bearer {_TOKEN}"}
        )
        with suppress(OSError), urllib.request.urlopen(request, timeout=2, context=context):  # noqa: S310 - its own address
            return True
        return False
