package rlock

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
)

//go:embed scripts/*.lua
var scriptFiles embed.FS

// script is one operation on Redis. Each is atomic and may run twice; its file
// says why.
type script struct {
	name, text, sha string
}

func newScript(name, text string) *script {
	sum := sha1.Sum([]byte(text))
	return &script{name, text, hex.EncodeToString(sum[:])}
}

// scripts are the operations of one client.
type scripts struct {
	acquire, release, abandon, renew, forceUnlock, inspect *script
}

var embedded = loadScripts(nil)

// loadScripts reads the embedded scripts; override replaces texts by name.
func loadScripts(override map[string]string) *scripts {
	load := func(name string) *script {
		if text, ok := override[name]; ok {
			return newScript(name, text)
		}
		text, err := scriptFiles.ReadFile("scripts/" + name + ".lua")
		if err != nil {
			panic(err) // embedded at build time: cannot fail
		}
		return newScript(name, string(text))
	}
	return &scripts{
		acquire:     load("acquire"),
		release:     load("release"),
		abandon:     load("abandon"),
		renew:       load("renew"),
		forceUnlock: load("force_unlock"),
		inspect:     load("inspect"),
	}
}
