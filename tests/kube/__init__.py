"""Suite kube: labs over the pods of a real Kubernetes, which the suite builds and starts on this machine."""
