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
	// publishes: its reply may be {reply, why Redis refused to publish}.
	publishes bool
}

func newScript(name, text string, publishes bool) *script {
	sum := sha1.Sum([]byte(text))
	return &script{name, text, hex.EncodeToString(sum[:]), publishes}
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
		text = include(text)
		all[name] = newScript(name, text, strings.Contains(text, "local function announce("))
	}
	return all
}

// acquiring are the scripts that give a lock to somebody new.
var acquiring = []string{"acquire", "acquire_all", "fair_enter", "rw_read_enter", "rw_write_enter", "queued_enter"}

// served adds the scripts that a server in quarantine does not obey.
func (s scripts) served() scripts {
	all := maps.Clone(s)
	for _, name := range acquiring {
		all[name+servedSuffix] = newScript(name, readScript("shared/served.lua")+s[name].text, s[name].publishes)
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
// "-- include NAME": those of scripts/shared/NAME.lua. If that file has a line
// "-- include the rest", the lines that follow are put there.
func include(text string) string {
	before, after, found := strings.Cut(text, "-- include ")
	if !found {
		return text
	}
	name, rest, _ := strings.Cut(after, "\n")
	shared, rest := readScript(path.Join("shared", name+".lua")), include(rest)
	if head, tail, wraps := strings.Cut(shared, "-- include the rest\n"); wraps {
		return before + head + rest + tail
	}
	return before + shared + rest
}
