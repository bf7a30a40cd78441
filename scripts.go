package rlock

import (
	"embed"

	"github.com/go-rlock/rlock/internal/protocol"
)

//go:embed scripts/*/*.lua
var scriptFiles embed.FS

// embedded are the scripts as the library brings them.
var embedded = func() protocol.Scripts {
	all, err := protocol.Load(scriptFiles, nil)
	if err != nil {
		panic(err) // embedded at build time: cannot fail
	}
	return all
}()

// loadScripts returns the scripts of a client, some of which may have other texts.
func loadScripts(override map[string]string) (protocol.Scripts, error) {
	if len(override) == 0 {
		return embedded, nil
	}
	return protocol.Load(scriptFiles, override)
}
