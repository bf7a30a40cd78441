// Rlockvet reports mistakes in code that uses rlock: https://go-rlock.github.io/rlock/latest/vet/.
//
//	rlockvet ./...
//	go vet -vettool=$(which rlockvet) ./...
package main

import (
	"golang.org/x/tools/go/analysis/multichecker"

	"github.com/go-rlock/rlock/rlockvet"
)

// main uses a multichecker, because only that answers the questions of go vet too.
func main() { multichecker.Main(rlockvet.Analyzer) }
