// Package kubernetes has the types of which controller-gen makes custom resource definitions.
package kubernetes

import _ "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
