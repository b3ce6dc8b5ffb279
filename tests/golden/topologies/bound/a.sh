vtysh -c 'conf t'
