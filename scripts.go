package rlock

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"maps"
	"path"
	"strings"
)

//go:embed scripts/*.lua scripts/shared/*.lua
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

// scripts are the operations of one client, by the names of their files.
type scripts map[string]*script

var embedded = loadScripts(nil)

// loadScripts reads the embedded scripts; override replaces texts by name.
func loadScripts(override map[string]string) scripts {
	files, err := scriptFiles.ReadDir("scripts")
	if err != nil {
		panic(err) // embedded at build time: cannot fail
	}
	all := scripts{}
	for _, f := range files {
		if f.IsDir() {
			continue
		}
		name := strings.TrimSuffix(f.Name(), ".lua")
		text, ok := override[name]
		if !ok {
			text = readScript(f.Name())
		}
		all[name] = newScript(name, include(text))
	}
	return all
}

// acquiring are the scripts that give a lock to somebody new.
var acquiring = []string{"acquire", "acquire_all", "fair_enter", "rw_read_enter", "rw_write_enter", "queued_enter"}

// served adds the scripts that a server in quarantine does not obey.
func (s scripts) served() scripts {
	all := maps.Clone(s)
	for _, name := range acquiring {
		all[name+servedSuffix] = newScript(name, readScript("shared/served.lua")+s[name].text)
	}
	return all
}

const servedSuffix = " when served"

func readScript(file string) string {
	text, err := scriptFiles.ReadFile(path.Join("scripts", file))
	if err != nil {
		panic(err)
	}
	return string(text)
}

// include puts the functions that several scripts share in the place of a line
// "-- include NAME": those of scripts/shared/NAME.lua.
func include(text string) string {
	lines := strings.SplitAfter(text, "\n")
	for i, line := range lines {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "-- include "); ok {
			lines[i] = readScript(path.Join("shared", name+".lua"))
		}
	}
	return strings.Join(lines, "")
}
