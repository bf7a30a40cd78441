package dashboards_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-rlock/rlock/internal/telemetry"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

var promQL = parser.NewParser(parser.Options{})

// outer are labels that scraping, and a histogram, add.
var outer = []string{"job", "le"}

// used checks an expression, and returns the metrics in it.
func used(t *testing.T, expr string) (names []string) {
	t.Helper()
	replaced := strings.NewReplacer("$__rate_interval", "1m", "$job", ".*", "$label", ".*").Replace(expr)
	if strings.Contains(replaced, "$") {
		t.Errorf("%s: a variable that is not known", expr)
	}
	parsed, err := promQL.ParseExpr(replaced)
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	var labels []string
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			m := definition(n.Name)
			if m == nil {
				t.Errorf("%s: no metric is called %s", expr, n.Name)
				return nil
			}
			names = append(names, m.Prometheus)
			var wants []string
			for _, matcher := range n.LabelMatchers {
				if matcher.Name != "__name__" {
					wants = append(wants, matcher.Name)
				}
			}
			has(t, expr, m, append(wants, labels...))
		case *parser.AggregateExpr:
			labels = append(labels, n.Grouping...) // of what is inside, which comes next
		}
		return nil
	})
	return names
}

func definition(name string) *telemetry.Definition {
	for i := range telemetry.Metrics {
		m := &telemetry.Metrics[i]
		switch {
		case m.Kind != telemetry.Histogram && name == m.Prometheus:
			return m
		case m.Kind == telemetry.Histogram && slices.Contains([]string{"_bucket", "_count", "_sum"}, strings.TrimPrefix(name, m.Prometheus)):
			return m
		}
	}
	return nil
}

func has(t *testing.T, expr string, m *telemetry.Definition, labels []string) {
	t.Helper()
	for _, l := range labels {
		is := func(key string) bool { return strings.ReplaceAll(key, ".", "_") == l }
		if !slices.Contains(outer, l) && !slices.ContainsFunc(m.Keys, is) {
			t.Errorf("%s: %s has no label %s", expr, m.Prometheus, l)
		}
	}
}

type panel struct {
	Title, Type string
	Datasource  struct{ UID string }
	GridPos     struct{ H, W, X, Y int }
	Targets     []struct {
		Expr       string
		Datasource struct{ UID string }
	}
}

func TestEveryMetricHasAPanelAndEveryPanelAMetric(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("rlock.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		UID           string
		SchemaVersion int
		Templating    struct {
			List []struct{ Name, Type string }
		}
		Panels []panel
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	if dashboard.UID != "rlock" || dashboard.SchemaVersion == 0 {
		t.Errorf("%s: schema version %d", dashboard.UID, dashboard.SchemaVersion)
	}
	if v := dashboard.Templating.List; len(v) == 0 || v[0].Name != "datasource" || v[0].Type != "datasource" {
		t.Errorf("the data source is no variable: %+v", v)
	}
	shown, titles := map[string]bool{}, map[string]bool{}
	for i, p := range dashboard.Panels {
		if titles[p.Title] {
			t.Errorf("two panels are called %s", p.Title)
		}
		titles[p.Title] = true
		for _, other := range dashboard.Panels[:i] {
			a, b := p.GridPos, other.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("%s and %s lie on each other", p.Title, other.Title)
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Datasource.UID != "${datasource}" {
			t.Errorf("%s: the data source is %s", p.Title, p.Datasource.UID)
		}
		n := 0
		for _, target := range p.Targets {
			if target.Datasource.UID != "${datasource}" {
				t.Errorf("%s: the data source is %s", p.Title, target.Datasource.UID)
			}
			for _, name := range used(t, target.Expr) {
				shown[name] = true
				n++
			}
		}
		if n == 0 {
			t.Errorf("%s shows no metric", p.Title)
		}
	}
	for _, m := range telemetry.Metrics {
		if !shown[m.Prometheus] {
			t.Errorf("%s has no panel", m.Prometheus)
		}
	}
}

func TestAlerts(t *testing.T) {
	t.Parallel()
	groups, errs := rulefmt.ParseFile("alerts.yaml", false, model.UTF8Validation, promQL, slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	alerted := map[string]bool{}
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			for _, name := range used(t, r.Expr) {
				alerted[name] = true
			}
			if r.Alert == "" || r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%+v", r)
			}
		}
	}
	for _, m := range []telemetry.Metric{telemetry.Losses, telemetry.LeaseMargin, telemetry.Leader, telemetry.WaitCount, telemetry.RenewalFailures} {
		if name := telemetry.Metrics[m].Prometheus; !alerted[name] {
			t.Errorf("no alert is about %s", name)
		}
	}
	// The bound of the margin is a bucket.
	if !slices.Contains(telemetry.Buckets, 10) {
		t.Error("the bound of RlockLeaseMarginLow is no bucket")
	}
}

func TestPromtoolAgrees(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not in PATH; TestAlerts has read the rules with the package that it uses")
	}
	if out, err := exec.Command(promtool, "check", "rules", "alerts.yaml").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// The files that the compose file mounts are there, and it starts what they name.
func TestComposeFile(t *testing.T) {
	t.Parallel()
	read := func(name string, into any) {
		t.Helper()
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		decoder := yaml.NewDecoder(bytes.NewReader(text))
		if err := decoder.Decode(into); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	var compose struct {
		Services map[string]struct {
			Image, Build any
			Volumes      []string
			Command      []string
		}
	}
	read("compose.yaml", &compose)
	for _, name := range []string{"redis", "load", "prometheus", "grafana"} {
		s, is := compose.Services[name]
		if !is || s.Image == nil && s.Build == nil {
			t.Errorf("no service %s: %+v", name, s)
		}
		for _, v := range s.Volumes {
			path, _, _ := strings.Cut(v, ":")
			if _, err := os.Stat(path); err != nil {
				t.Error(err)
			}
		}
	}
	var scraped struct {
		Rules []string `yaml:"rule_files"`
		Jobs  []struct {
			Static []struct{ Targets []string } `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	read("prometheus.yaml", &scraped)
	if len(scraped.Jobs) != 1 || len(scraped.Rules) != 1 {
		t.Fatalf("%+v", scraped)
	}
	host, port, _ := strings.Cut(scraped.Jobs[0].Static[0].Targets[0], ":")
	if _, is := compose.Services[host]; !is || !slices.Contains(compose.Services[host].Command, ":"+port) {
		t.Errorf("nobody listens at %s:%s", host, port)
	}
	if _, err := os.Stat(scraped.Rules[0]); err != nil {
		t.Error(err)
	}
	provisioned, err := filepath.Glob("provisioning/*.yaml")
	if err != nil || len(provisioned) != 2 {
		t.Error(provisioned, err)
	}
	for _, name := range provisioned {
		var any map[string]any
		if read(name, &any); any["apiVersion"] != 1 {
			t.Errorf("%s: %v", name, any)
		}
	}
}
