package golangci_test

import (
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/golangci/plugin-module-register/register"
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/go-rlock/rlock/rlockvet"
	_ "github.com/go-rlock/rlock/rlockvet/golangci"
)

// plugin is what golangci-lint makes of settings.
func plugin(t *testing.T, settings any) (register.LinterPlugin, error) {
	t.Helper()
	newPlugin, err := register.GetPlugin("rlockvet")
	if err != nil {
		t.Fatal(err)
	}
	return newPlugin(settings)
}

func analyzer(t *testing.T, settings any) *analysis.Analyzer {
	t.Helper()
	p, err := plugin(t, settings)
	if err != nil {
		t.Fatal(err)
	}
	all, err := p.BuildAnalyzers()
	if err != nil || len(all) != 1 || all[0].Name != "rlockvet" {
		t.Fatal(all, err)
	}
	if mode := p.GetLoadMode(); mode != register.LoadModeTypesInfo {
		t.Error(mode)
	}
	return all[0]
}

// Each flag has its setting: a new flag fails the test.
func TestSettingsAreTheFlags(t *testing.T) {
	for _, c := range []struct {
		settings any
		want     string
	}{
		{nil, "anycontext=false skip= tests=false"},
		{map[string]any{"skip": []any{rlockvet.LongWait, rlockvet.TimedName}, "tests": true}, "anycontext=false skip=long-wait,timed-name tests=true"},
		{map[string]any{"anycontext": true}, "anycontext=true skip= tests=false"},
	} {
		if got := flags(analyzer(t, c.settings)); got != c.want {
			t.Errorf("%v: %s", c.settings, got)
		}
	}
	if got := flags(rlockvet.Analyzer); got != "anycontext=false skip= tests=false" {
		t.Error("the settings of a plugin are also those of the command:", got)
	}
}

// The page names this package, and the plugin as it is registered.
func TestThePageNamesThePlugin(t *testing.T) {
	p, err := plugin(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "vet.md"))
	if err != nil {
		t.Fatal(err)
	}
	path := reflect.TypeOf(p).PkgPath()
	for _, want := range []string{
		"\n  - module: " + strings.TrimSuffix(path, "/golangci") + "\n    import: " + path + "\n",
		"\n  enable: [rlockvet]\n", "\n      rlockvet: {type: module, settings: {skip: [" + rlockvet.TimedName + "], tests: false}}\n",
	} {
		if !strings.Contains(string(page), want) {
			t.Errorf("no %q", want)
		}
	}
}

func flags(a *analysis.Analyzer) string {
	var all []string
	a.Flags.VisitAll(func(f *flag.Flag) { all = append(all, f.Name+"="+f.Value.String()) })
	return strings.Join(all, " ")
}

// The analyzer of the plugin finds what the one of the command finds.
func TestFindings(t *testing.T) {
	analysistest.Run(t, "..", analyzer(t, map[string]any{"anycontext": true}), "./testdata/anycontext")
}

func TestWrongSettings(t *testing.T) {
	for _, c := range []struct {
		settings any
		want     string
	}{
		{map[string]any{"skip": []any{"unlock-eror"}}, `rlockvet: no category "unlock-eror"; the categories are lost-lease, `},
		{map[string]any{"skips": []any{"unlock-error"}}, `rlockvet: decoding settings: json: unknown field "skips"`},
		{map[string]any{"tests": "often"}, `rlockvet: decoding settings: json: cannot unmarshal string into Go struct field settings.tests of type bool`},
	} {
		if _, err := plugin(t, c.settings); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%v: %v", c.settings, err)
		}
	}
}
