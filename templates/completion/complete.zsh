_complete_inv() {
    local -a typed
    local at
    read -cA typed
    read -cn at
    reply=( ${(f)"$("${typed[1]}" --complete -- "${(@)typed[1,at]}" 2>/dev/null)"} )
}
compctl -K _complete_inv + -f inv ./inv
