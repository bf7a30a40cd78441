package protocol

import (
	"strings"
	"testing"
	"testing/fstest"
)

func filesOf(texts map[string]string) fstest.MapFS {
	files := fstest.MapFS{}
	for name, text := range texts {
		files["scripts/"+name+".lua"] = &fstest.MapFile{Data: []byte(text)}
	}
	return files
}

func TestLoadIncludesEachFileOnceAndInOrderOfNeed(t *testing.T) {
	all, err := Load(filesOf(map[string]string{
		"shared/ttl":        "ttl\n",
		"shared/vote":       "-- include ttl\nvote\n",
		"shared/quarantine": "-- include ttl\nquarantine\n",
		"lock/enter":        "-- lock/enter\n-- include quarantine when served\n-- include vote\n-- include ttl\nenter\n",
		"lock/leave":        "-- include publish\nleave",
		"shared/publish":    "local function announce(how)\n",
	}), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"lock/enter":              "-- lock/enter\nttl\nvote\nenter\n",
		"lock/enter" + WhenServed: "-- lock/enter\nttl\nquarantine\nvote\nenter\n",
		"lock/leave":              "local function announce(how)\nleave",
	} {
		s := all[name]
		switch {
		case s == nil:
			t.Errorf("no script %q", name)
		case s.Text() != want:
			t.Errorf("%s is %q, want %q", name, s.Text(), want)
		case s.Publishes() != strings.Contains(want, "announce("):
			t.Errorf("%s: Publishes is %v", name, s.Publishes())
		case s.Name != strings.TrimSuffix(name, WhenServed):
			t.Errorf("%s has the name %q", name, s.Name)
		}
	}
	if len(all) != 3 {
		t.Errorf("%d scripts", len(all))
	}
}

func TestLoadReplacesTextsByName(t *testing.T) {
	files := filesOf(map[string]string{"shared/ttl": "ttl\n", "lock/enter": "-- include ttl\nenter\n"})
	all, err := Load(files, map[string]string{"shared/ttl": "other\n"})
	if err != nil || all["lock/enter"].Text() != "other\nenter\n" {
		t.Error(all, err)
	}
	if _, err := Load(files, map[string]string{"lock/entr": ""}); err == nil {
		t.Error("a name that is no script's was replaced")
	}
	if _, err := Load(files, map[string]string{"lock/enter": "-- include none\n"}); err == nil {
		t.Error("a file that is not there was included")
	}
}
