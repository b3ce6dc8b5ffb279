function __complete_inv
    set -l typed (commandline -opc)
    set -l last (commandline -ct)
    set -l offered ($typed[1] --complete -- $typed "$last" 2>/dev/null)
    set -l fitting (string match --regex -- '^'(string escape --style=regex -- "$last")'.*' $offered)
    if set -q fitting[1]
        printf '%s\n' $fitting
    else
        __fish_complete_path "$last"
    end
end
complete --command inv --no-files --arguments '(__complete_inv)'
