// Package golangci registers rlockvet with golangci-lint, as a plugin of its module plugin system. A .custom-gcl.yml
// names this package; docs/vet.md has the steps.
package golangci

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/golangci/plugin-module-register/register"
	"golang.org/x/tools/go/analysis"

	"github.com/go-rlock/rlock/rlockvet"
)

func init() { register.Plugin("rlockvet", newPlugin) }

// settings are the flags of the analyzer, in .golangci.yml.
type settings struct {
	Skip       []string `json:"skip"`
	Tests      bool     `json:"tests"`
	AnyContext bool     `json:"anycontext"`
}

type plugin struct{ analyzer *analysis.Analyzer }

func newPlugin(raw any) (register.LinterPlugin, error) {
	set, err := register.DecodeSettings[settings](raw)
	if err != nil {
		return nil, fmt.Errorf("rlockvet: %w", err)
	}
	a := rlockvet.New()
	for name, value := range map[string]string{
		"skip":       strings.Join(set.Skip, ","),
		"tests":      strconv.FormatBool(set.Tests),
		"anycontext": strconv.FormatBool(set.AnyContext),
	} {
		if err := a.Flags.Set(name, value); err != nil {
			return nil, err
		}
	}
	return plugin{a}, nil
}

func (p plugin) BuildAnalyzers() ([]*analysis.Analyzer, error) {
	return []*analysis.Analyzer{p.analyzer}, nil
}

func (plugin) GetLoadMode() string { return register.LoadModeTypesInfo }
