_complete_inv() {
    # Readline splits words at = and : too, so the words are taken from the line.
    local line=${COMP_LINE:0:COMP_POINT} IFS=$' \t\n' typed last offered
    read -ra typed <<< "$line"
    [[ $line == *[[:blank:]] ]] && typed+=("")
    while [[ ${#typed[@]} -gt 1 && ${typed[0]} != "${COMP_WORDS[0]}" ]]; do typed=("${typed[@]:1}"); done
    last=${typed[${#typed[@]}-1]}
    offered=$("${typed[0]}" --complete -- "${typed[@]}" 2>/dev/null)
    IFS=$'\n'
    COMPREPLY=( $(compgen -W "$offered" -- "$last") )
    # It replaces only what follows the last of these characters.
    if [[ $last == *[:=]* ]]; then COMPREPLY=( "${COMPREPLY[@]#"${last%"${last##*[:=]}"}"}" ); fi
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[:=] ]]; then compopt -o nospace 2>/dev/null; fi
    return 0
}
complete -o default -F _complete_inv inv ./inv
