"""The manifests of deploy/kubernetes and the compose file: generated parts, rendering, and the schemas that check them."""
