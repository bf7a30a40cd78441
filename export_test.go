package rlock

// ScriptText and ScriptSHA are what a server is sent of a script, and the hash
// under which it knows it.
func ScriptText(name string) string { return embedded[name].text }
func ScriptSHA(name string) string  { return embedded[name].sha }
