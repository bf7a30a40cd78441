package main

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func newVersion(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version, and what rlock lacks on this platform", Args: counted(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Version  string   `json:"version"`
				Go       string   `json:"go"`
				Platform string   `json:"platform"`
				Lacks    []string `json:"lacks"`
			}{version(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH, append([]string{}, lacks...)}
			if a.json {
				printJSON(a.stdout, v)
				return nil
			}
			line(a.stdout, "rlock %s %s %s", v.Version, v.Go, v.Platform)
			for _, what := range v.Lacks {
				line(a.stdout, "on this platform: %s", what)
			}
			return nil
		},
	}
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
