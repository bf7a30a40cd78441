package rlock

import (
	"embed"

	"github.com/go-rlock/rlock/internal/protocol"
)

//go:embed scripts/*/*.lua
var scriptFiles embed.FS

var scripts = func() *protocol.Files {
	files, err := protocol.Read(scriptFiles)
	if err != nil {
		panic(err) // embedded at build time: cannot fail
	}
	return files
}()

// embedded are the scripts as the library brings them.
var embedded = func() protocol.Scripts {
	all, err := scripts.Scripts(nil)
	if err != nil {
		panic(err) // nothing was replaced: cannot fail
	}
	return all
}()

// loadScripts returns the scripts of a client, some of which may have other texts.
func loadScripts(override map[string]string) (protocol.Scripts, error) {
	if len(override) == 0 {
		return embedded, nil
	}
	return scripts.Scripts(override)
}
