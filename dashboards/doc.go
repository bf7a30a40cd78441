// Package dashboards has a Grafana dashboard and alerts for the metrics of rlockotel and rlockprom. Its
// tests hold these together.
package dashboards
